"""Listening to KV events, from real ZMQ publishers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ext_proc.config import parse
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources import kv_events, kv_reader
from ext_proc.sources.kv_events import NO_EVENTS, KvEventListener
from tests.unit.sources.publishing import Publisher
from tests.waiting import until

SIZE = 4


def tokens(number: int) -> list[int]:
    """Make the tokens of a block."""
    return [number] * SIZE


def stored(*numbers: int, parent: int | None = None) -> dict[str, Any]:
    """Make an event about blocks that are named by their token."""
    ids = [token for number in numbers for token in tokens(number)]
    return {
        "type": "BlockStored", "block_hashes": list(numbers), "parent_block_hash": parent, "token_ids": ids,
        "block_size": SIZE, "medium": "GPU",
    }  # fmt: skip


def removed(*numbers: int) -> dict[str, Any]:
    """Make the event that blocks are gone."""
    return {"type": "BlockRemoved", "block_hashes": list(numbers), "medium": "GPU"}


class Listening:
    """A registry with one engine, the index, and notes of what was heard."""

    def __init__(self, settings: str, address: str = "127.0.0.1:8000") -> None:
        self.registry = Registry()
        self.index = ResidentIndex()
        self.results: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.problems: list[str] = []
        self.busy: set[int] = set()
        self.registry.replace("p", [EndpointSpec(address=address)])
        self.listener = KvEventListener(
            self.config(settings),
            registry=self.registry,
            resident=self.index,
            is_busy=self.busy.__contains__,
            listener=self,
            changed=lambda _, problem: self.problems.append(problem),
        )

    @staticmethod
    def config(settings: str) -> Any:
        """Make a configuration of one pool."""
        return parse(f"pools: {{p: {{endpoints: ['10.0.0.1:80'], kv_events: {{{settings}}}}}}}")

    @property
    def endpoint(self) -> Endpoint:
        """The engine."""
        return self.registry.snapshot.endpoints[0]

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """Count it."""
        self.results[result] += 1
        self.skipped.update(skipped)

    def kv_recovery(self, result: str) -> None:
        """Count it."""
        self.recoveries[result] += 1

    def held(self, *numbers: int) -> int | None:
        """Ask for a prompt of blocks."""
        chain = TokenHasher(SIZE).chain([token for number in numbers for token in tokens(number)])
        return self.index.tokens_held(chain, [self.endpoint.slot])[0]


@asynccontextmanager
async def listening(publisher: Publisher, settings: str = "", *, replay: bool = True) -> AsyncIterator[Listening]:
    """Listen to a publisher, which is heard once the block is entered: it publishes block 0."""
    ports = f"port: {publisher.port}" + (f", replay_port: {publisher.replay_port}" if replay else "")
    heard = Listening(f"{ports}{settings}")
    async with running(heard):
        yield heard


@asynccontextmanager
async def running(heard: Listening) -> AsyncIterator[None]:
    """Run the listener."""
    task = asyncio.create_task(heard.listener.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def joined(publisher: Publisher, heard: Listening) -> None:
    """Publish until it is heard: who connects misses what was published before."""

    async def is_heard() -> bool:
        await publisher.publish(stored(0))
        await asyncio.sleep(0)
        return heard.held(0) == SIZE and not heard.listener.is_degraded

    await until(is_heard)


@pytest.mark.parametrize("with_topic", [False, True])
async def test_what_was_published_before_is_asked_for(with_topic: bool) -> None:
    """Who comes late learns what is held from the engine's memory, in either form of its answers."""
    async with Publisher(with_topic=with_topic) as publisher:
        await publisher.publish(stored(1, 2))
        await publisher.publish(removed(2))
        async with listening(publisher) as heard:
            await joined(publisher, heard)
            assert (heard.held(1, 2), heard.held(5), publisher.questions) == (SIZE, 0, [0])
            await publisher.publish(stored(3, parent=1), removed(0))
            await until(lambda: heard.held(1, 3) == 2 * SIZE)
            assert heard.recoveries == {"replayed": 1}
            assert heard.results["replayed"] >= 2


async def test_an_engine_that_was_not_used_yet_is_known_to_hold_nothing() -> None:
    """It publishes nothing, but its answer to the question for all before says so."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await until(lambda: heard.held(1) == 0)
        assert heard.endpoint.slot in heard.index
        await publisher.publish(stored(1, 2))
        await until(lambda: heard.held(1, 2) == 2 * SIZE)
        assert heard.recoveries == {"replayed": 1}


async def test_an_engine_that_is_silent_is_known_by_what_it_published_before() -> None:
    """Nobody waits for its next message; and with what it cannot answer for, it may hold more than is known."""
    async with Publisher() as publisher:
        await publisher.publish(stored(1, 2))
        await publisher.publish(removed(2))
        async with listening(publisher) as heard:
            await until(lambda: heard.held(1, 2) == SIZE)
            assert heard.held(7) == 0
        publisher.forgotten = 1
        async with listening(publisher) as heard:
            await until(lambda: heard.endpoint.slot in heard.index)
            assert heard.held(1) is None


async def test_an_engine_without_an_answer_is_not_known_before_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question is given up, and counted as unanswered."""
    monkeypatch.setattr(kv_reader, "REPLAY_IDLE_S", 0.2)
    async with Publisher() as publisher, listening(publisher) as heard:
        publisher.is_mute = True
        await until(lambda: heard.recoveries == {"unanswered": 1})
        assert (heard.endpoint.slot in heard.index, heard.listener.is_degraded) == (False, False)
        await joined(publisher, heard)


async def test_after_a_cut_the_same_engine_is_still_believed() -> None:
    """What it published last proves that it is the same process, however little of the rest it remembers."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await publisher.publish(stored(2))
        await until(lambda: heard.held(2) == SIZE)
        publisher.forgotten = len(publisher.kept) - 1
        publisher.questions.clear()
        await publisher.interrupted()
        await publisher.publish(stored(3))
        await until(lambda: heard.held(3) == SIZE)
        assert (heard.held(1), heard.held(2), heard.held(9)) == (SIZE, SIZE, 0)
        assert publisher.questions[:1] == [len(publisher.kept) - 2]
        assert not heard.recoveries["restart"]


async def test_after_a_cut_another_engine_is_believed_by_its_own_messages() -> None:
    """Its numbers are further on than those of the one before, so only what they say tells the two apart."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        before = len(publisher.kept)
        await publisher.__aexit__()
        again = Publisher(publisher.port, publisher.replay_port)
        for number in range(before + 3):
            await again.publish(stored(100 + number))
        async with again:
            await until(lambda: heard.held(101) == SIZE)
            assert (heard.held(1), heard.held(100), heard.recoveries["restart"]) == (0, SIZE, 1)


async def test_lost_messages_are_asked_for_again() -> None:
    """A gap is filled; what its messages gave up is gone, and nothing counts twice."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1, 2), is_sent=False)
        await publisher.publish(removed(2), is_sent=False)
        missing = len(publisher.kept) - 2
        await publisher.publish(stored(3, parent=1))
        await until(lambda: heard.held(1, 3) == 2 * SIZE)
        assert (heard.held(1, 2), heard.held(9), publisher.questions[-1]) == (SIZE, 0, missing)
        await publisher.publish(removed(1))
        await until(lambda: heard.held(1) == 0)


async def test_without_an_answer_nothing_older_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the answer is awaited the engine is not in the index; after that it is with what came later."""
    monkeypatch.setattr(kv_reader, "REPLAY_IDLE_S", 0.5)
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        publisher.is_mute = True
        await publisher.publish(removed(0), is_sent=False)
        await publisher.publish(stored(7))
        await until(lambda: heard.listener.is_degraded)
        assert heard.endpoint.slot not in heard.index
        await until(lambda: heard.held(7) == SIZE)
        assert (heard.held(0), heard.recoveries["lost"], heard.listener.is_degraded) == (None, 1, False)


async def test_without_a_place_to_ask_losses_end_belief_at_once() -> None:
    """An engine without a replay port still serves; what is newer than the gap counts."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(removed(0), is_sent=False)
        await publisher.publish(stored(7))
        await until(lambda: heard.held(7) == SIZE)
        assert (heard.held(0), publisher.questions) == (None, [])


async def test_gaps_one_after_the_other_are_asked_for_with_a_pause() -> None:
    """An engine that loses every second message is not flooded with questions."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        before, began = len(publisher.questions), time.monotonic()
        for number in range(20):
            await publisher.publish(stored(100 + number), is_sent=number % 2 == 1)
            await asyncio.sleep(0.02)
        await until(lambda: heard.held(119) == SIZE)
        assert heard.held(118) == SIZE
        elapsed = time.monotonic() - began
        assert len(publisher.questions) - before <= elapsed / kv_reader.COOL_DOWN_S + 1
        assert heard.recoveries.keys() == {"replayed"}


async def test_a_restarted_engine_holds_nothing_from_its_first_event_on() -> None:
    """The socket connects again by itself; numbers begin anew, with that everything older is forgotten."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        await publisher.__aexit__()
        async with Publisher(publisher.port, publisher.replay_port) as again:

            async def is_forgotten() -> bool:
                again.kept.clear()
                await again.publish(stored(8))
                return heard.held(1) == 0

            await until(is_forgotten)
            assert (heard.held(8), heard.recoveries["restart"] >= 1) == (SIZE, True)


async def test_garbage_is_dropped_and_counted() -> None:
    """Whatever frames come, the next good message is used."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        number = len(publisher.kept).to_bytes(8, "big")
        good = publisher.kept[0]
        for frames in ([b"t", b"\0\0\1", good], [b"t"], [b"t", number, good, b"extra"], [b"t", number]):
            await publisher.send(frames)
        for payload in (b"\x93\xcb", b"", b"hello", bytes(5 * 1024 * 1024)):
            await publisher.send([b"t", b"\x7f" + number[1:], payload])
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        expected = {"number": 1, "frames": 3, "not_msgpack": 3, "too_large": 1}
        assert {result: heard.results[result] for result in expected} == expected
        assert heard.recoveries["lost"] <= 1  # what was published before we had connected


async def test_a_message_without_bounds_does_not_reach_memory() -> None:
    """Who sends more than any engine does is disconnected; the socket connects again, and the next good one counts."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.send([b"t", b"x" * 8, bytes(kv_reader.LARGEST_MESSAGE + 1)])
        await publisher.publish(stored(1), is_sent=False)

        async def is_back() -> bool:
            await publisher.publish(stored(2))
            return heard.held(2) == SIZE

        await until(is_back)
        await until(lambda: heard.held(1) == SIZE)
        assert not heard.results["too_large"]


async def test_only_the_topic_that_counts_is_heard() -> None:
    """A publisher may carry more than one topic."""
    async with Publisher(topic=b"kv@a") as publisher, listening(publisher, ", topic: kv@a") as heard:
        await joined(publisher, heard)
        for number in range(5):
            await publisher.send([b"other", number.to_bytes(8, "big"), b"hello"])
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        assert not heard.results["not_msgpack"]
        assert not heard.recoveries["restart"]


async def test_each_rank_has_a_port() -> None:
    """Ranks publish at ports that follow each other; the engine counts as their mean."""
    ports = list(range(20_000, 60_000, 97))
    first = next(publisher for port in ports if (publisher := _try(port)) is not None)
    second = Publisher(first.port + 1)
    async with first, second:
        heard = Listening(f"port_offset: {first.port - 8000}, ranks: 2")
        async with running(heard):
            for publisher in (first, second):

                async def is_heard(publisher: Publisher = publisher, number: int = publisher.port) -> bool:
                    await publisher.publish(stored(number), is_sent=True)
                    return bool(heard.held(number))

                await until(is_heard)
            assert heard.held(first.port) == heard.held(second.port) == SIZE // 2


def _try(port: int) -> Publisher | None:
    try:
        return Publisher(port)
    except OSError:
        return None


async def test_a_flood_leaves_the_loop_to_others() -> None:
    """While an engine publishes as fast as it can, others wait for milliseconds; in the end all of it counts."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        delays: list[float] = []

        async def others() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.001)
                delays.append(time.monotonic() - began)

        watching = asyncio.create_task(others())
        for number in range(3000):
            await publisher.publish(*[stored(number * 10 + place) for place in range(10)], removed(number * 10 + 1))
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: heard.held(29_999) == SIZE)
        watching.cancel()
        delays.sort()
        assert delays[int(len(delays) * 0.9)] < 0.05
        assert (heard.held(29_992), heard.held(29_991)) == (SIZE, 0)


async def test_after_work_the_loop_has_as_long_for_others() -> None:
    """A turn of work is followed by as much time for all others; after a moment of work they just have their turn."""
    heard: list[str] = []
    asyncio.get_running_loop().call_soon(heard.append, "other")
    await kv_reader._rest(0.0)
    assert heard == ["other"]
    began = time.monotonic()
    await kv_reader._rest(0.05)
    assert time.monotonic() - began >= 0.049


async def test_an_engine_that_is_at_work_and_silent_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing comes although there is work, a port, a flag or a topic is wrong: said once, until it is mended."""
    monkeypatch.setattr(kv_events, "SILENCE_S", 0.3)
    async with Publisher() as publisher, listening(publisher, ", topic: kv") as heard:
        await until(lambda: (heard.listener.silence(heard.endpoint, time.monotonic()) or 0) > 0.5)
        assert heard.problems == []
        heard.busy.add(heard.endpoint.slot)
        await until(lambda: heard.problems == [NO_EVENTS])
        assert (heard.listener.is_degraded, heard.endpoint.slot in heard.index) == (True, False)
        await joined(publisher, heard)
        await until(lambda: heard.problems == [NO_EVENTS, ""])


async def test_endpoints_come_and_go() -> None:
    """What an engine that is gone held is forgotten at once, and who takes its slot inherits nothing."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        gone = heard.endpoint
        change = heard.registry.replace("p", [EndpointSpec(address="127.0.0.2:8000")])
        for endpoint in change.removed:
            heard.index.remove(endpoint.slot)
        assert gone.slot not in heard.index
        await until(lambda: heard.listener.silence(heard.endpoint, time.monotonic()) is not None)
        assert heard.listener.silence(gone, time.monotonic()) is None
        heard.registry.replace("p", [])
        heard.registry.replace("p", [EndpointSpec(address="127.0.0.1:8000")])
        await joined(publisher, heard)
        await until(lambda: len(heard.index) == 1)


async def test_a_changed_configuration_applies() -> None:
    """Another port is listened to without a restart of anything."""
    async with Publisher() as publisher, Publisher() as other, listening(publisher) as heard:
        await joined(publisher, heard)
        heard.listener.configure(heard.config(f"port: {other.port}"))
        await until(lambda: heard.endpoint.slot not in heard.index)
        await joined(other, heard)
        heard.listener.configure(parse("pools: {p: {endpoints: ['10.0.0.1:80']}}"))
        await until(lambda: heard.listener.silence(heard.endpoint, time.monotonic()) is None)
        assert (heard.endpoint.slot in heard.index, len(heard.index)) == (False, 0)
