"""What comes of reading metrics reaches the log, the counts and the feedback."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change
from ext_proc.core.signals import EngineSignals, Interval, Signals, Times
from ext_proc.ops import families
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics
from ext_proc.scraping import ScrapeNews
from ext_proc.sources.scrape_engines import PageReader
from tests.unit.core.builders import Fleet, request, text


class Hearing:
    """A small fleet and what was said and applied."""

    def __init__(self) -> None:
        self.fleet = Fleet(2)
        self.metrics = Metrics(frozenset)
        self.said: list[tuple[Event, dict[str, Any]]] = []
        self.applied: list[Change] = []
        self.heard: list[str] = []
        self.sleeps: list[bool | None] = []
        self.news = ScrapeNews(
            self.metrics, self.fleet.feedback, self.applied.append, self.say, self.hear, self.hear_sleep
        )

    def hear_sleep(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """Keep it."""
        self.sleeps.append(signals.asleep)

    def hear(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Keep it."""
        self.heard.append(problem)

    def say(self, event: Event, **fields: Any) -> None:
        """Keep it."""
        self.said.append((event, fields))

    def learn(self, interval: Interval, waiting: float | None = None) -> None:
        """Let an interval of the first endpoint end now."""
        signals = EngineSignals(at=self.fleet.now, waiting=waiting)
        self.news.interval_ended(self.fleet.endpoints[0], interval, signals)

    def rate(self) -> float | None:
        """Return the rate learnt for the first endpoint."""
        return self.fleet.rates.rate(self.fleet.endpoints[0].slot)


def test_a_change_of_state_is_one_line() -> None:
    """A problem is a warning with its reason, its end a notice; neither says more than that."""
    hearing = Hearing()
    endpoint = hearing.fleet.endpoints[0]
    hearing.news.state_changed(endpoint, "timeout", TimeoutError())
    hearing.news.state_changed(endpoint, "unknown_engine", None)
    hearing.news.state_changed(endpoint, "", None)
    where = {"source": "metrics", "endpoint": endpoint.address}
    assert hearing.said == [
        (Event.SOURCE_FAILED, where | {"reason": "timeout", "error": "TimeoutError"}),
        (Event.SOURCE_FAILED, where | {"reason": "unknown_engine"}),
        (Event.SOURCE_RECOVERED, where),
    ]
    assert hearing.heard == ["timeout", "unknown_engine", ""]


def test_attempts_are_counted_and_capacities_applied() -> None:
    """The counter grows, and whoever follows endpoints hears of the change."""
    hearing = Hearing()
    hearing.news.scraped("ok", "vllm", ("waiting",))
    change = Change(updated=(hearing.fleet.endpoints[0],))
    hearing.news.size_learnt(change)
    assert hearing.metrics.tallies[families.SCRAPES].samples() == [(("ok",), 1)]
    assert hearing.applied == [change]


def test_slow_first_tokens_make_an_endpoint_count_as_slower() -> None:
    """Times to the first token that are longer than predicted lower the learnt rate; a restart teaches nothing."""
    hearing = Hearing()
    address = hearing.fleet.endpoints[0].address
    hearing.learn(Interval(seconds=1.0, ttft=Times(0.0, 0.0)))
    rates = []
    for number in range(4):
        decision = hearing.fleet.pick(request(text(number)), subset={address})
        hearing.fleet.now += 5.0
        hearing.learn(Interval(seconds=5.0, ttft=Times(5.0, 1.0)))
        hearing.fleet.settle(decision)
        rates.append(hearing.rate() or 0.0)
    assert rates[0] > rates[1] > rates[2] > rates[3] > 0
    hearing.learn(Interval(seconds=1.0, restarted=True))
    assert hearing.rate() == rates[3]


@pytest.mark.parametrize(
    "after",
    [
        "process_start_time_seconds 1700000900.5\nvllm:prompt_tokens_total 9000\n",
        "vllm:prompt_tokens_total 0\n",
        "process_start_time_seconds 1700000000.5\nvllm:prompt_tokens_total 12\n",
    ],
    ids=["another start", "counters without a start", "counters fell"],
)
def test_a_restart_in_place_is_seen_on_the_page(after: str) -> None:
    """Same address, another process: what our own history credits it with is gone, the others' stays (E06)."""
    hearing = Hearing()
    fleet, prompt = hearing.fleet, request(text("p", 32_000))
    first, other = fleet.endpoints
    for endpoint in (first, other):
        fleet.settle(fleet.pick(prompt, subset={endpoint.address}))
    usual = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
    before = f"{usual}process_start_time_seconds 1700000000.5\nvllm:prompt_tokens_total 9000\n"
    signals, reader = Signals(), PageReader("vllm")
    for at, page in enumerate((before, before, f"{usual}{after}")):
        assert all(terms.hit_tokens > 0 for terms in fleet.pick(prompt).terms)
        interval = signals.note(first.slot, reader.read(page.encode(), float(at)).signals)
        if interval is not None:
            hearing.learn(interval)
    hits = {terms.endpoint.address: terms.hit_tokens for terms in fleet.pick(prompt).terms}
    assert hits[first.address] == 0
    assert hits[other.address] > 0


def test_an_empty_queue_ends_the_virtual_one() -> None:
    """If the engine has nothing waiting, the ledger's queue holds no more than the newest request."""
    hearing = Hearing()
    address = hearing.fleet.endpoints[0].address
    hearing.learn(Interval(seconds=1.0), waiting=0.0)
    for number in range(8):
        hearing.fleet.pick(request(text(number, 40_000)), subset={address})
    queue = hearing.fleet.load(0).busy_until
    hearing.learn(Interval(seconds=1.0), waiting=None)
    assert hearing.fleet.load(0).busy_until == queue
    hearing.learn(Interval(seconds=1.0), waiting=0.0)
    assert hearing.fleet.load(0).busy_until < queue
