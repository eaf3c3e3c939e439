"""Reading metrics again and again, from real HTTP servers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.config import parse
from ext_proc.core.model import Endpoint, MetricsSource
from ext_proc.core.pool import Change, EndpointSpec, Registry
from ext_proc.core.signals import EngineSignals, Interval, Signals, Times
from ext_proc.sources.scrape import IDLE_AFTER_S, LAST_RETRY_S, TURN_S, Scraper, ScrapeStatus, _next_turn, _Watch
from tests.unit.sources.pages import VLLM_PAGE, case
from tests.unit.sources.serving import Engine, drip, hang, only_at, page, redirecting, serving
from tests.waiting import until

CONFIG = "scrape: {{interval_s: 0.1, idle_interval_s: 0.1{scrape}}}\npools: {{p: {{endpoints: ['10.0.0.1:80']{pool}}}}}"
BUSY = b"vllm:num_requests_running 4\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"


def config(scrape: str = "", pool: str = "") -> Any:
    """Make a configuration that reads ten times a second."""
    return parse(CONFIG.format(scrape=scrape, pool=pool))


class Scraping:
    """A registry, what is known of its engines, and notes of what was heard."""

    def __init__(self, token: str | None = None, **settings: str) -> None:
        self.registry = Registry()
        self.signals = Signals()
        self.faulty = False
        self.results: Counter[str] = Counter()
        self.missing: Counter[tuple[str, str]] = Counter()
        self.problems: list[str] = []
        self.changes: list[Change] = []
        self.sleeps: list[tuple[str, bool | None, str]] = []
        self.intervals: list[Interval] = []
        self.busy: set[int] = set()
        self.scraper = Scraper(
            config(**settings),
            token,
            registry=self.registry,
            signals=self.signals,
            is_busy=self.busy.__contains__,
            listener=self,
            rng=random.Random(7),
        )

    def scraped(self, result: str, engine: str, missing: tuple[str, ...]) -> None:
        """Count it, or fail where the test says so."""
        if self.faulty and result == "ok":
            raise ZeroDivisionError
        self.results[result] += 1
        for signal in missing:
            self.missing[engine, signal] += 1

    def state_changed(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Keep the problem."""
        self.problems.append(problem)

    def sleep_told(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """Keep the word."""
        self.sleeps.append((endpoint.address, signals.asleep, signals.sleep_level))

    def size_learnt(self, change: Change) -> None:
        """Keep the change."""
        self.changes.append(change)

    def interval_ended(self, endpoint: Endpoint, interval: Interval, signals: EngineSignals) -> None:
        """Keep the interval."""
        self.intervals.append(interval)

    def list(self, *addresses: str, **spec: Any) -> None:
        """Make these the endpoints of the pool."""
        self.registry.replace("p", [EndpointSpec(address=address, **spec) for address in addresses])

    def endpoint(self, engine: Engine) -> Endpoint:
        """Return the endpoint of an engine as it is."""
        return self.registry.snapshot.by_address[engine.address]

    def known(self, engine: Engine) -> EngineSignals | None:
        """Return what is known of an engine."""
        return self.signals.of(self.endpoint(engine).slot, time.monotonic())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read while the test runs, and leave no task behind."""
        before = asyncio.all_tasks()
        task = asyncio.create_task(self.scraper.run())
        try:
            yield
        finally:
            assert not task.done(), "reading ended"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not [each for each in asyncio.all_tasks() - before if "_keep_reading" in repr(each)]


async def test_what_an_engine_says_is_known_soon_and_followed() -> None:
    """Load, capacity and the times between readings reach those who want them."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        engine.answer = page(VLLM_PAGE)
        scraping.list(engine.address)
        await until(lambda: scraping.known(engine) is not None)
        assert scraping.endpoint(engine).kv_tokens == 4_194_304
        assert scraping.scraper.status(scraping.endpoint(engine)) == ScrapeStatus("vllm", "")
        name = b'vllm:time_to_first_token_seconds_%s{engine="0",model_name="tiny"} '
        later = VLLM_PAGE
        for part, value in ((b"sum", b"3.0"), (b"count", b"2.0")):
            later = later.replace(name % part + b"0.0", name % part + value)
        engine.answer = page(later)
        await until(lambda: any(interval.ttft == Times(3.0, 2.0) for interval in scraping.intervals))
    assert scraping.problems == []
    assert len(scraping.changes) == 1
    assert not scraping.missing


async def test_a_configured_capacity_stands() -> None:
    """The operator knows better than the page."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        engine.answer = page(VLLM_PAGE)
        scraping.list(engine.address, kv_tokens=5)
        await until(lambda: scraping.results["ok"] > 1)
        assert scraping.endpoint(engine).kv_tokens == 5
    assert scraping.changes == []


async def test_the_ranks_of_an_engine_are_counted() -> None:
    """As many as tell what they run."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        lines = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in range(4)).encode()
        engine.answer = page(lines)
        scraping.list(engine.address)
        await until(lambda: scraping.endpoint(engine).ranks == 4)
    assert [change.updated[0].ranks for change in scraping.changes] == [4]


async def test_c01_missing_signals_are_counted_by_name() -> None:
    """A renamed family is seen in a counter, not only in decisions."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        engine.answer = page(case("C01")["E3"])
        scraping.list(engine.address)
        await until(lambda: scraping.missing["vllm", "kv_usage"] > 0)
    assert set(scraping.missing) == {("vllm", "kv_usage")}


async def test_c06_an_engine_that_says_nothing_yet_is_no_failure() -> None:
    """The page of a fresh engine is read at the usual pace, and its load becomes known once it is there."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        engine.answer = page(case("C06")["E1"])
        scraping.list(engine.address)
        await until(lambda: scraping.results["unknown_engine"] >= 3)
        known = scraping.known(engine)
        assert known is not None
        assert known.running is None
        engine.answer = page(BUSY)
        await until(lambda: getattr(scraping.known(engine), "running", None) == 4.0)
    assert scraping.problems == ["unknown_engine", ""]


@pytest.mark.parametrize("answer", [hang, drip], ids=["hangs", "drips"])
async def test_c11_a_slow_page_delays_no_other_endpoint(answer: Any) -> None:
    """One engine's reading ends at its limit of two intervals while others are read at their pace."""
    scraping = Scraping()
    async with serving() as slow, serving() as quick, scraping.running():
        slow.answer = answer
        quick.answer = page(BUSY)
        scraping.list(slow.address, quick.address)
        await until(lambda: scraping.results["timeout"] >= 2)
        assert scraping.results["ok"] > 2
        assert scraping.known(slow) is None
        assert slow.most_at_once == 1
    assert scraping.problems == ["timeout"]


async def test_c13_an_engine_behind_a_login_is_unknown() -> None:
    """Neither a refusal nor a login page is a page of zeros, and the configured token opens the door."""
    scraping = Scraping(token="secret")
    async with serving() as refusing, serving() as login, serving() as moved, scraping.running():
        refusing.answer = page(b"", 401)
        login.answer = page(b"<html>login</html>", content_type="text/html")
        moved.answer = redirecting("/metrics/", BUSY)
        scraping.list(refusing.address, login.address, moved.address)
        await until(lambda: len(moved.asked) >= 4 and len(refusing.asked) >= 2 and len(login.asked) >= 2)
        assert scraping.known(refusing) is scraping.known(login) is None
        assert getattr(scraping.known(moved), "running", None) == 4.0
    assert moved.asked.count("/metrics") == 1, "the detour is taken once"
    assert set(refusing.authorizations) == {"Bearer secret"}
    assert sorted(scraping.problems) == ["http_401", "not_metrics"]


async def test_an_engine_that_stops_answering_fades_and_returns() -> None:
    """A failure is reported once and takes nothing away; after the return the engine is read as before."""
    scraping = Scraping()
    async with scraping.running():
        async with serving() as engine:
            engine.answer = page(BUSY)
            scraping.list(engine.address)
            await until(lambda: scraping.known(engine) is not None)
        await until(lambda: scraping.results["unreachable"] >= 2)
        assert scraping.signals.age(0, time.monotonic()) is not None
        async with serving(int(engine.address.rpartition(":")[2])) as returned:
            returned.answer = page(BUSY)
            await until(lambda: scraping.problems == ["unreachable", ""])


async def test_endpoints_come_and_go() -> None:
    """What is listed is read, what is gone is read no more, and a successor in the slot inherits nothing."""
    scraping = Scraping()
    async with serving() as one, serving() as two, scraping.running():
        one.answer = page(BUSY)
        two.answer = hang
        scraping.list(one.address)
        await until(lambda: scraping.known(one) is not None)
        scraping.signals.remove(0)
        scraping.list()
        scraping.list(two.address)
        await until(lambda: len(two.asked) >= 2)
        asked_by_then = len(one.asked)
        await until(lambda: len(two.asked) >= 3)
        assert len(one.asked) == asked_by_then
        assert scraping.endpoint(two).slot == 0
        assert scraping.known(two) is None


async def test_a_reading_that_comes_too_late_is_void() -> None:
    """If the endpoint was replaced while its page was on the way, its successor does not get the numbers."""
    scraping = Scraping()
    endpoint = Endpoint(address="10.0.0.9:80", pool="p", slot=0, generation=99)
    scraping.list("10.0.0.9:80")
    watch = _Watch(endpoint, MetricsSource())
    scraping.scraper._note(watch, watch.reader.read(BUSY, 1.0), 1.0)
    assert scraping.signals.of(0, 1.0) is None


@pytest.mark.parametrize(
    ("settings", "spec", "asked"),
    [
        ({}, {}, {"/metrics", "/prometheus/metrics"}),
        ({"pool": ", engine: tensorrt-llm"}, {}, {"/prometheus/metrics"}),
        ({"pool": ", metrics_path: ' stats '"}, {}, {"/stats"}),
        ({"pool": ", metrics_path: /stats"}, {"metrics": MetricsSource(path="/own")}, {"/own"}),
    ],
    ids=["unknown", "by engine", "by pool", "by endpoint"],
)
async def test_the_page_is_looked_for_where_it_should_be(
    settings: dict[str, str], spec: dict[str, Any], asked: set[str]
) -> None:
    """Without a word the usual paths are tried in turn; a configured one is the only one (C14)."""
    scraping = Scraping(**settings)
    async with serving() as engine, scraping.running():
        engine.answer = only_at(max(asked), BUSY.replace(b"vllm:", b"trtllm_"))
        scraping.list(engine.address, **spec)
        await until(lambda: scraping.results["ok"] >= 2)
    assert set(engine.asked) == asked
    assert scraping.results["http_404"] == len(asked) - 1


async def test_a_page_on_another_port_of_the_endpoint_is_read() -> None:
    """Servers that show metrics on a port of their own are read there."""
    scraping = Scraping()
    async with serving() as engine, serving() as metrics, scraping.running():
        metrics.answer = page(BUSY)
        scraping.list(engine.address, metrics=MetricsSource(port=int(metrics.address.rpartition(":")[2])))
        await until(lambda: scraping.known(engine) is not None)
    assert engine.asked == []


async def test_an_engine_without_metrics_is_left_alone() -> None:
    """Ollama has no page: it is not asked, and that is no degradation."""
    scraping = Scraping(pool=", engine: ollama")
    async with serving() as ollama, serving() as other, scraping.running():
        scraping.list(ollama.address)
        scraping.registry.replace("q", [EndpointSpec(address=other.address)])
        await until(lambda: len(other.asked) >= 2)
        scraping.registry.remove_pool("q")
        await until(lambda: len(scraping.scraper._watches) == 0)
        assert not scraping.scraper.is_degraded(time.monotonic() + 1000)
    assert ollama.asked == []


async def test_another_configuration_takes_effect_while_running() -> None:
    """Switching off ends all readings, switching on begins anew, and never are there two at once."""
    scraping = Scraping()
    async with serving() as engine, scraping.running():
        engine.answer = page(BUSY)
        scraping.list(engine.address)
        await until(lambda: scraping.results["ok"] >= 1)
        scraping.scraper.configure(config(scrape=", enabled: false"), None)
        await until(lambda: not scraping.scraper._watches)
        engine.asked.clear()
        for path in ("/a", "/b", "/c"):
            engine.answer = only_at(path, BUSY)
            scraping.scraper.configure(config(pool=f", metrics_path: {path}"), None)
            await until(lambda: engine.asked[-1:] == [path])  # noqa: B023  awaited within the round
        assert engine.most_at_once == 1


async def test_degradation_is_metrics_that_stop_not_an_engine_that_is_down() -> None:
    """An engine that answers with errors is missed after a while; one that is gone is a matter of health."""
    scraping = Scraping()
    async with scraping.running():
        async with serving() as engine:
            engine.answer = page(b"", 500)
            scraping.list(engine.address)
            await until(lambda: scraping.results["http_500"] >= 1)
            now = time.monotonic()
            assert not scraping.scraper.is_degraded(now)
            assert scraping.scraper.is_degraded(now + 60)
        await until(lambda: scraping.results["unreachable"] >= 1)
        assert not scraping.scraper.is_degraded(time.monotonic() + 60)


async def test_a_fault_in_a_listener_does_not_end_reading() -> None:
    """Whatever a listener does, the engine is asked again."""
    scraping = Scraping()
    scraping.faulty = True
    async with serving() as engine, scraping.running():
        engine.answer = page(BUSY)
        scraping.list(engine.address)
        await until(lambda: scraping.results["internal"] >= 2)


@given(st.floats(0, 1e6))
def test_turns_are_soon_and_shared(at: float) -> None:
    """No reading waits for longer than a turn, and there are no more than twenty turns in a second."""
    turn = _next_turn(at)
    assert at - 1e-9 <= turn <= at + TURN_S + 1e-9
    assert _next_turn(turn - TURN_S / 2) == turn


def test_the_pace_follows_what_there_is_to_see() -> None:
    """Busy engines are read at the interval, idle ones at the idle one, failing ones ever less often."""
    scraping = Scraping()
    scraping.scraper.configure(parse("pools: {p: {endpoints: ['10.0.0.1:80']}}"), None)
    scraping.list("10.0.0.1:80")
    endpoint = scraping.registry.snapshot.endpoints[0]
    watch = _Watch(endpoint, MetricsSource())
    assert scraping.scraper._interval(watch) == 1.0
    watch.busy_at -= IDLE_AFTER_S + 1
    assert scraping.scraper._interval(watch) == 5.0
    scraping.scraper._note(watch, watch.reader.read(BUSY, 1.0), time.monotonic())
    assert scraping.scraper._interval(watch) == 1.0
    watch.busy_at -= IDLE_AFTER_S + 1
    scraping.busy.add(endpoint.slot)
    scraping.scraper._note(watch, watch.reader.read(b"", 1.0), time.monotonic())
    assert scraping.scraper._interval(watch) == 1.0
    waits = []
    for watch.failures in range(1, 50):
        waits.append(scraping.scraper._interval(watch))
    assert waits[:3] == [2.0, 4.0, 8.0]
    assert max(waits) == LAST_RETRY_S
