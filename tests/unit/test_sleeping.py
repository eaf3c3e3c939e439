"""What engines say of their sleep takes effect, and one is woken where requests wait for that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ext_proc import admitting
from ext_proc.assembly import build_core
from ext_proc.config import Config, parse
from ext_proc.core.errors import Asleep
from ext_proc.core.health_states import HealthState, Verdict
from ext_proc.core.kv_events import Batch, BlocksStored
from ext_proc.core.lifecycle import Stage
from ext_proc.core.model import Decision, Ending, Endpoint
from ext_proc.core.observer import NoObserver
from ext_proc.core.picker import Rejection
from ext_proc.core.pool import EndpointSpec
from ext_proc.core.signals import EngineSignals
from ext_proc.core.sleepers import Sleepers, SleepLevel, Witness
from ext_proc.core.turn import Turn
from ext_proc.ops.events import Event
from ext_proc.sleeping import Sleeping
from tests.unit.core.builders import MODEL, request
from tests.unit.core.waiting import Asker
from tests.unit.sources.serving import hang, page, serving
from tests.waiting import until

A, B = "10.0.0.11:8000", "10.0.0.12:8000"
OFFLOADED = SleepLevel.WEIGHTS_OFFLOADED


def config(wake: float = 0.0, from_zero: float = 0.0) -> Config:
    """Make a configuration of one pool."""
    queue = f"{{wake_s: {wake}, scale_from_zero_s: {from_zero}}}"
    return parse(
        f"scrape: {{interval_s: 1, idle_interval_s: 5}}\npools: {{p: {{endpoints: ['10.9.9.9:1'], models: [{MODEL}],"
        f" queue: {queue}}}}}"
    )


class Wired:
    """A whole decision whose engines fall asleep by a test's word."""

    def __init__(self, *addresses: str, wake: float = 0.0, from_zero: float = 0.0) -> None:
        self.config = config(wake, from_zero)
        self.core = build_core(self.config, NoObserver())
        self.now, self.generator = 1000.0, random.Random(7)
        self.said: list[tuple[Event, dict[str, Any]]] = []
        self.calls: list[str] = []
        self.sleeping = Sleeping(self.config, self.core, lambda _: {}, self.calls.append, self.say, lambda: self.now)
        models = frozenset({MODEL})
        specs = [EndpointSpec(address=each, models=models) for each in addresses or (A, B)]
        self.core.follow(self.core.registry.replace("p", specs))
        self.asker = Asker()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All there are."""
        return tuple(self.core.registry.snapshot.endpoints)

    def say(self, event: Event, **fields: Any) -> None:
        """Keep it."""
        self.said.append((event, fields))

    def sleep(self, *places: int, level: SleepLevel = OFFLOADED, witness: Witness = Witness.METRICS) -> None:
        """Let these engines say that they sleep."""
        for place in places:
            self.sleeping.told(self.endpoints[place], witness, asleep=True, level=level)

    def pick(self, prompt: str = "x") -> Decision | Rejection:
        """Make a decision."""
        return self.core.picker.pick(request(prompt.encode()), self.now, self.generator)

    def wait(self) -> Turn:
        """Let a request wait, as an exchange does whose pick found all asleep."""
        turn = Turn(self.asker, 4, request(), self.now)
        assert self.core.admission.may_wait(turn.request, Asleep(""))
        assert self.core.admission.join(turn, self.now, cold=True) is None
        return turn


def held(wired: Wired, place: int) -> int:
    """Return the blocks that an endpoint is believed to hold by our own history."""
    return wired.core.index.blocks(wired.endpoints[place].slot)


def test_e17_a_sleeper_gets_nothing_and_its_prefixes_are_gone() -> None:
    """Both indexes forget; the log and Envoy are told once, however often it says so."""
    wired = Wired()
    for _ in range(4):
        wired.pick("a long prompt " * 100)
    one, other = wired.endpoints
    before = held(wired, 0) + held(wired, 1)
    feed = wired.core.resident.feed(one.slot)
    feed.receive(0, Batch([BlocksStored(hashes=[1], tokens=list(range(16)), block_tokens=16)]))
    assert before > 0
    assert sum(map(len, feed.caches.values())) == 1
    wired.sleep(0, 0)
    assert (held(wired, 0), sum(map(len, feed.caches.values())), one.slot in wired.core.resident) == (0, 0, True)
    assert [event for event, _ in wired.said] == [Event.ENDPOINT_SLEEPS]
    assert wired.said[0][1] == {"endpoint": A, "pool": "p", "level": "weights_offloaded", "evidence": "metrics"}
    for _ in range(10):
        made = wired.pick()
        assert isinstance(made, Decision)
        assert made.chosen == other
    wired.core.health.note(one, Ending.CONNECT_FAILURE, wired.now)
    assert wired.core.health.state(one.slot) is HealthState.READY
    wired.core.health.note(other, Ending.CONNECT_FAILURE, wired.now)
    assert wired.core.health.state(other.slot) is HealthState.DEGRADED, "the last one that is awake is not ejected"


def test_a_paused_engine_keeps_its_prefixes_until_it_sleeps_deeper() -> None:
    """Level 0 stops the scheduler and no more."""
    wired = Wired(A)
    wired.pick("a long prompt " * 100)
    wired.sleep(0, level=SleepLevel.PAUSED)
    assert held(wired, 0) > 0
    wired.sleep(0, level=SleepLevel.DISCARD_ALL)
    assert held(wired, 0) == 0
    assert len(wired.said) == 1


@pytest.mark.parametrize("level", SleepLevel)
def test_prefixes_go_when_it_is_known_that_the_cache_went(level: SleepLevel) -> None:
    """A probe does not tell how deep an engine sleeps. Its metrics may, later; if they never do it wakes cold."""
    wired = Wired(A)
    wired.pick("a long prompt " * 100)
    wired.sleep(0, level=SleepLevel.UNKNOWN, witness=Witness.PROBE)
    assert held(wired, 0) > 0
    wired.sleep(0, level=level)
    assert (held(wired, 0) == 0) == (level in {SleepLevel.WEIGHTS_OFFLOADED, SleepLevel.DISCARD_ALL})
    wired.sleeping.told(wired.endpoints[0], Witness.PROBE, asleep=False)
    assert (held(wired, 0) > 0) == (level is SleepLevel.PAUSED)
    assert [event for event, _ in wired.said] == [Event.ENDPOINT_SLEEPS, Event.ENDPOINT_WAKES]


def test_a_sleep_that_nobody_repeats_ends_cold() -> None:
    """If nobody ever said how deep it was."""
    wired = Wired(A)
    wired.pick("a long prompt " * 100)
    wired.sleep(0, level=SleepLevel.UNKNOWN)
    wired.sleeping.tick(wired.now + 60.0)
    assert held(wired, 0) == 0


def test_it_comes_back_by_itself_and_slowly() -> None:
    """When it says so; it owes nothing, and its share grows."""
    wired = Wired()
    wired.sleep(0)
    wired.now += 60.0
    wired.sleeping.scraped(wired.endpoints[0], EngineSignals(at=wired.now, asleep=False))
    status = wired.core.health.status(wired.endpoints[0].slot, wired.now)
    assert (status.state, status.share < 0.5) == (HealthState.READY, True)
    assert [event for event, _ in wired.said] == [Event.ENDPOINT_SLEEPS, Event.ENDPOINT_WAKES]


def test_a_word_from_long_ago_does_not_hold_for_ever() -> None:
    """Metrics that cannot be read any more say nothing of a sleep: probes have to, or it is tried again."""
    wired = Wired()
    wired.core.health.configure(wired.config.health.policy, probing=True)
    wired.sleep(0)
    wired.sleeping.tick(wired.now + 20.0)
    assert wired.endpoints[0].slot in wired.core.sleepers
    wired.sleeping.tick(wired.now + 25.0)
    assert wired.endpoints[0].slot not in wired.core.sleepers
    assert wired.core.health.state(wired.endpoints[0].slot) is HealthState.WARMING
    assert wired.said[-1][1]["evidence"] == "nothing is heard of its sleep any more"


def test_what_is_late_is_not_laid_on_a_successor() -> None:
    """An answer may come when another engine has the address."""
    wired = Wired()
    one = wired.endpoints[0]
    for addresses in ((B,), (A, B)):
        specs = [EndpointSpec(address=each, models=frozenset({MODEL})) for each in addresses]
        wired.core.follow(wired.core.registry.replace("p", specs))
    wired.sleeping.told(one, Witness.PROBE, asleep=True)
    assert not wired.core.sleepers.slots
    wired.sleep(0, 1)
    wired.core.follow(wired.core.registry.replace("p", []))
    assert not wired.core.sleepers.slots


def test_what_is_believed_tells_whom_to_ask() -> None:
    """Asleep by whomever; awake by fresh metrics; else nobody knows."""
    wired = Wired()
    one, other = wired.endpoints
    assert wired.sleeping.believed(one) is None
    wired.core.signals.note(one.slot, EngineSignals(at=wired.now, asleep=False))
    wired.core.signals.note(other.slot, EngineSignals(at=wired.now))
    assert (wired.sleeping.believed(one), wired.sleeping.believed(other)) == (False, None)
    wired.now += 60.0
    assert wired.sleeping.believed(one) is None
    wired.sleep(0)
    assert wired.sleeping.believed(one) is True


def test_nobody_waits_where_nobody_is_woken() -> None:
    """Neither without the setting, nor for whom a wake call does not help, nor for a cordoned one."""
    refusal = Asleep("")
    plain = Wired(A)
    plain.sleep(0)
    assert not plain.core.admission.may_wait(request(), refusal)
    waking = Wired(A, wake=5.0)
    waking.sleep(0)
    assert waking.core.admission.may_wait(request(), refusal)
    waking.sleep(0, level=SleepLevel.DISCARD_ALL)
    assert not waking.core.admission.may_wait(request(), refusal)
    cordoned = Wired(A, wake=5.0)
    cordoned.sleep(0)
    cordoned.core.lifecycle.cordon(cordoned.endpoints[0])
    assert cordoned.core.lifecycle.stage(cordoned.endpoints[0].slot) is Stage.CORDONED
    assert not cordoned.core.admission.may_wait(request(), refusal)


def test_who_waited_in_vain_is_told_why() -> None:
    """Asleep while it sleeps; not up yet, or busy, where that is what it waited for."""
    wired = Wired(A, wake=5.0)
    wired.sleep(0)
    turn = wired.wait()
    assert turn.deadline == wired.now + 5.0
    wired.core.admission.expire(turn, wired.now + 5.0)
    (_, refusal), *_ = wired.asker.refused
    assert isinstance(refusal, Asleep)
    assert refusal.retry_after == 5
    cold = Wired(A, wake=5.0, from_zero=40.0)
    cold.sleep(0)
    assert cold.wait().deadline == cold.now + 40.0


@asynccontextmanager
async def waking(wired: Wired) -> AsyncIterator[None]:
    """Let it wake engines while the context lasts."""

    def failed(reason: str, error: BaseException) -> None:
        raise error

    works = (
        admitting.look(wired.core.admission, lambda: wired.now, failed, wired.sleeping.look),
        wired.sleeping.run(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 3])
async def test_one_call_for_however_many_wait(count: int) -> None:
    """The one who is woken serves them; nobody else is woken, and it counts as awake at once."""
    async with serving() as engine, serving() as other:
        wired = Wired(engine.address, other.address, wake=5.0)
        wired.sleep(0, 1)
        async with waking(wired):
            turns = [wired.wait() for _ in range(count)]
            await until(lambda: bool(engine.asked or other.asked))
            wired.asker.places = count
            await until(lambda: len(wired.asker.served) == count)
        assert wired.asker.served == turns
        assert (wired.calls, len(engine.asked) + len(other.asked)) == (["ok"], 1)
        assert len(wired.core.sleepers.slots) == 1


async def test_while_one_is_being_woken_nobody_else_is() -> None:
    """A call takes seconds; looking twenty times a second must not make more of it."""
    async with serving() as engine, serving() as other:
        for each in (engine, other):
            each.answer = hang
        wired = Wired(engine.address, other.address, wake=5.0)
        wired.sleep(0, 1)
        async with waking(wired):
            wired.wait()
            await until(lambda: bool(engine.asked or other.asked))
            await asyncio.sleep(0.3)
            assert len(engine.asked) + len(other.asked) == 1


async def test_after_a_failure_the_next_one_is_tried_and_then_there_is_a_pause() -> None:
    """Two engines that refuse are asked once each, until the pause is over."""
    async with serving() as engine, serving() as other:
        for each in (engine, other):
            each.answer = page(b"", 500)
        wired = Wired(engine.address, other.address, wake=60.0)
        wired.sleep(0, 1)
        async with waking(wired):
            wired.wait()
            await until(lambda: len(wired.calls) == 2)
            await asyncio.sleep(0.2)
            assert (len(engine.asked), len(other.asked)) == (1, 1)
            wired.now += 2.5
            await until(lambda: len(wired.calls) == 4)
            wired.now += 2.5
            await asyncio.sleep(0.2)
            assert wired.calls == ["refused"] * 4, "the pause has doubled"
        assert {fields["reason"] for event, fields in wired.said if event is Event.WAKE_FAILED} == {"refused"}


async def test_nobody_is_woken_while_nobody_waits() -> None:
    """Sleep is somebody's wish."""
    async with serving() as engine:
        wired = Wired(engine.address, wake=5.0)
        wired.sleep(0)
        async with waking(wired):
            await asyncio.sleep(0.2)
            turn = wired.wait()
            wired.core.admission.leave(turn, wired.now)
            await asyncio.sleep(0.2)
        assert engine.asked == []


async def test_a_call_under_way_ends_with_the_service() -> None:
    """Nothing is left behind."""
    async with serving() as engine:
        engine.answer = hang
        wired = Wired(engine.address, wake=5.0)
        wired.sleep(0)
        async with waking(wired):
            wired.wait()
            await until(lambda: engine.at_once == 1)
        await until(lambda: engine.at_once == 0)
        assert wired.calls == []


def test_a_sleeper_is_no_proof_that_another_one_listens() -> None:
    """Who waits for a first endpoint waits for its good probes, though nothing is known against one that sleeps."""
    wired = Wired(A, from_zero=5.0)
    wired.core.health.configure(wired.config.health.policy, probing=True)
    wired.sleep(0)
    turn = wired.wait()
    specs = [EndpointSpec(address=each, models=frozenset({MODEL})) for each in (A, B)]
    wired.core.follow(wired.core.registry.replace("p", specs))
    wired.asker.places = 1
    wired.core.admission.dispatch(wired.now)
    assert wired.asker.served == []
    for _ in range(2):
        wired.core.health.probed(wired.endpoints[1], Verdict.GOOD, "http_200", wired.now)
    wired.core.admission.dispatch(wired.now)
    assert wired.asker.served == [turn]


class Looks(Sleepers):
    """Counts looks whom a wake call would help."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def wakeable(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Count it."""
        self.count += 1
        return super().wakeable(endpoints)


async def test_while_nobody_waits_nobody_looks_who_sleeps() -> None:
    """However many do: only who waits has the process wake up now and then, and not for longer than he does."""
    async with serving() as engine:
        engine.answer = hang
        wired, looks = Wired(engine.address, wake=5.0), Looks()
        wired.core.admission._sleepers = looks
        wired.sleep(0)
        looks.asleep(wired.endpoints[0], OFFLOADED, Witness.METRICS, wired.now)
        async with waking(wired):
            await asyncio.sleep(0.2)
            assert looks.count == 0
            turn = wired.wait()
            asked = looks.count
            await until(lambda: looks.count > asked + 1)
            wired.core.admission.leave(turn, wired.now)
            await asyncio.sleep(0.1)
            before = looks.count
            await asyncio.sleep(0.2)
            assert looks.count == before


def test_nobody_waits_for_whom_the_gateway_does_not_allow() -> None:
    """One that could be woken is of no use to a request that may only go to another one."""
    wired = Wired(wake=5.0)
    wired.sleep(0, level=SleepLevel.DISCARD_ALL)
    wired.sleep(1)
    assert not wired.core.admission.may_wait(request(), Asleep(""), {A})
    assert wired.core.admission.may_wait(request(), Asleep(""), {A, B})
