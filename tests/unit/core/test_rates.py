"""Prefill rates, from each of their sources."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.candidates import Candidates
from ext_proc.core.load import Service
from ext_proc.core.model import Endpoint
from ext_proc.core.prefill import Prefill
from ext_proc.core.rates import RateLearner, RateSource
from tests.unit.core.builders import endpoints

NUMBERS = itertools.count()


class Engine:
    """Prefills one prompt after the other at a rate, and tells the learner of each first token."""

    def __init__(self, learner: RateLearner, endpoint: Endpoint, rate: float) -> None:
        self.learner, self.endpoint, self.rate = learner, endpoint, rate
        self.free_at = self.heard_at = 0.0

    def serve(self, now: float, tokens: float) -> float:
        """Prefill a prompt that comes now; returns when its first token comes."""
        self.free_at = max(self.free_at, now) + tokens / self.rate
        begun = max(now, self.heard_at)
        self.heard_at = self.free_at
        service = Service(self.free_at - begun, tokens, self.free_at - begun)
        self.learner.first_token(self.endpoint, self.free_at, service, Prefill(tokens, tokens, tokens, 1.0))
        return self.free_at


def _learn(learner: RateLearner, rates: list[float], prompts: int = 200, **fields: float) -> Candidates:
    candidates = Candidates(endpoints(len(rates), **fields))
    generator = random.Random(5)
    for endpoint, rate in zip(candidates, rates, strict=True):
        engine = Engine(learner, endpoint, rate)
        now = 0.0
        for _ in range(prompts):
            now += generator.expovariate(1.0)
            engine.serve(now, generator.choice([200, 1000, 8000]))
    return candidates


def test_first_tokens_tell_the_rate() -> None:
    """Idle time and waiting do not count: the rate is work over service."""
    learner = RateLearner()
    candidates = _learn(learner, [10_000.0])
    assert learner.rate(0) == pytest.approx(10_000, rel=0.01)
    assert learner.source(0) is RateSource.FIRST_TOKEN
    assert learner.rates(candidates, 1e6) == pytest.approx([10_000], rel=0.01)


def test_small_differences_are_taken_for_noise() -> None:
    """Within 1.4 of the median an endpoint counts as the median; beyond, its own rate counts."""
    learner = RateLearner()
    candidates = _learn(learner, [10_000.0, 11_000.0, 9_000.0, 3_000.0, 10_500.0])
    rates = learner.rates(candidates, 1e6)
    assert rates[0] == rates[1] == rates[2] == rates[4]
    assert rates[3] == pytest.approx(3_000, rel=0.01)


def test_an_endpoint_without_history_is_like_its_peers() -> None:
    """A newcomer counts with its configured rate, or with the median of those that are known."""
    learner = RateLearner()
    _learn(learner, [10_000.0, 10_000.0])
    known = endpoints(2)
    plain, stated = (Endpoint(address=f"n:{slot}", pool="p", slot=slot) for slot in (7, 8))
    stated = Endpoint(address="n:8", pool="p", slot=8, prefill_rate=5_000.0)
    assert learner.rates(Candidates((*known, plain, stated)), 1e6)[2:] == pytest.approx([10_000, 5_000], rel=0.01)


def test_nothing_known_is_nothing_said() -> None:
    """Without any history configured rates count, and without those there is no rate at all."""
    learner = RateLearner()
    assert learner.rates(Candidates(endpoints(2)), 0.0) == ()
    stated = Candidates((endpoints(1)[0], Endpoint(address="n:8", pool="p", slot=8, prefill_rate=5_000.0)))
    assert learner.rates(stated, 0.0) == [0.0, 5_000.0]
    assert (learner.rate(0), learner.source(0), learner.attention("p")) == (None, None, 0.0)


def test_a_view_is_kept_for_a_moment() -> None:
    """Decisions within a quarter of a second read the same rates; later ones the new ones."""
    learner = RateLearner()
    candidates = _learn(learner, [10_000.0])
    before = learner.rates(candidates, 500.0)
    engine = Engine(learner, candidates[0], 1_000.0)
    engine.free_at = engine.heard_at = 1e6
    for _ in range(400):
        engine.serve(engine.free_at, 8000)
    assert learner.rates(candidates, 500.2) is before
    assert learner.rates(candidates, 500.3) == pytest.approx([1_000], rel=0.05)


def test_a_slower_engine_is_noticed() -> None:
    """An engine that slows down to a third is known for it after some dozens of prompts."""
    learner = RateLearner()
    endpoint = endpoints(1)[0]
    engine = Engine(learner, endpoint, 12_000.0)
    for _ in range(200):
        engine.serve(engine.free_at, 4000)
    engine.rate = 4_000.0
    for _ in range(150):
        engine.serve(engine.free_at, 4000)
    assert learner.rate(0) == pytest.approx(4_000, rel=0.1)


@pytest.mark.parametrize("true", [4_000.0, 16_000.0])
def test_scraped_sums_move_a_wrong_rate(true: float) -> None:
    """Times to first token longer than predicted lower the rate, shorter ones raise it, until predictions fit."""
    learner = RateLearner()
    learner.scraped(0, 0.0, 0, 0.0)
    rate = 8_000.0
    for now in range(2, 800, 2):
        for _ in range(5):
            learner.dispatched(0, f"d{next(NUMBERS)}", Prefill(work=4000, seconds=4000 / rate))
        learner.scraped(0, 5 * 4000 / true, 5, float(now))
        rate = learner.rate(0) or rate
    assert rate == pytest.approx(true, rel=0.1)
    assert learner.source(0) is RateSource.SCRAPE


def test_requests_of_others_do_not_count_as_ours() -> None:
    """An engine that also serves another kvpicker's requests is judged by the mean, not by the sum."""
    learner = RateLearner()
    learner.scraped(0, 0.0, 0, 0.0)
    rate = 8_000.0
    for now in range(2, 800, 2):
        learner.dispatched(0, f"d{next(NUMBERS)}", Prefill(work=4000, seconds=4000 / rate))
        learner.scraped(0, 4 * 0.5, 4, float(now))
        rate = learner.rate(0) or rate
    assert rate == pytest.approx(8_000, rel=0.1)


def test_the_best_source_is_used_alone() -> None:
    """While first tokens come, scrapes have no say; when they stop, the next best source takes over."""
    learner = RateLearner()
    _learn(learner, [10_000.0])
    before = learner.rate(0)
    last = 210.0
    learner.scraped(0, 0.0, 0, last)
    learner.dispatched(0, f"d{next(NUMBERS)}", Prefill(work=1000, seconds=0.1))
    learner.scraped(0, 9.0, 1, last)
    assert (learner.rate(0), learner.source(0)) == (before, RateSource.FIRST_TOKEN)
    learner.dispatched(0, f"d{next(NUMBERS)}", Prefill(work=1000, seconds=0.1))
    learner.scraped(0, 9.0, 1, last + 500)
    assert learner.source(0) is RateSource.SCRAPE
    assert (learner.rate(0) or 0) < (before or 0)


def test_a_forgotten_slot_begins_anew() -> None:
    """The next endpoint in a slot inherits no rate."""
    learner = RateLearner()
    candidates = _learn(learner, [10_000.0])
    assert learner.rates(candidates, 1e6)
    learner.remove(0)
    assert (learner.rate(0), learner.rates(candidates, 1e6)) == (None, ())


def test_attention_is_learnt_per_pool() -> None:
    """Service that grows faster than the prompt tells the attention length of the pool's engines."""
    learner, generator = RateLearner(), random.Random(4)
    endpoint, now = endpoints(1)[0], 0.0
    for _ in range(4000):
        tokens = float(generator.choice([500, 4_000, 16_000, 60_000]))
        seconds = tokens * (1 + tokens / 2 / 40_000) / 10_000
        work = tokens * (1 + tokens / 2 / 24_000)
        learner.first_token(
            endpoint, now + seconds, Service(seconds, work, seconds), Prefill(tokens, tokens, work, 1.0)
        )
        now += seconds
    assert learner.attention("p") == pytest.approx(40_000, rel=0.2)
    assert learner.attention("q") == 0.0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("first"), st.floats(0, 100), st.floats(0, 1e6)),
        st.tuples(st.just("scrape"), st.floats(-1, 100), st.integers(-1, 5)),
        st.tuples(st.just("sent"), st.floats(0, 100), st.floats(0, 1e6)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_rates_are_always_usable(events: list[tuple[str, float, float]]) -> None:
    """Whatever comes in whatever order, a rate is a positive finite number or none."""
    learner, now = RateLearner(), 0.0
    candidates = Candidates(endpoints(2))
    for kind, seconds, number in events:
        now += 0.3
        if kind == "first":
            service = Service(seconds, number, seconds)
            learner.first_token(candidates[0], now + seconds, service, Prefill(number, number, number, 1.0))
        elif kind == "scrape":
            learner.scraped(0, seconds, int(number), now)
        else:
            learner.dispatched(0, f"d{next(NUMBERS)}", Prefill(work=number, seconds=seconds))
        assert all(0 < rate < 1e300 for rate in learner.rates(candidates, now))


def test_a_configured_attention_length_is_where_learning_begins() -> None:
    """The first fits move away from what was assumed, not from a constant."""
    learner, generator = RateLearner(), random.Random(4)
    endpoint, now = endpoints(1)[0], 0.0
    for _ in range(240):
        tokens = float(generator.choice([1_500, 4_000, 16_000, 60_000]))
        seconds = tokens * (1 + tokens / 2 / 60_000) / 10_000
        prefill = Prefill(tokens, tokens, tokens, 1.0, attention=60_000.0)
        learner.first_token(endpoint, now + seconds, Service(seconds, tokens, seconds), prefill)
        now += seconds
    assert learner.attention("p") == pytest.approx(60_000, rel=0.1)


def test_attention_is_forgotten_with_the_engines_it_was_learnt_of() -> None:
    """A pool whose engines were all replaced begins anew; one that keeps an engine keeps what it knows."""
    learner = RateLearner()
    known = endpoints(2)
    for _ in range(300):
        for endpoint in known:
            for tokens in (2_000.0, 30_000.0):
                seconds = tokens * (1 + tokens / 2 / 90_000) / 10_000
                learner.first_token(
                    endpoint, 1.0, Service(seconds, tokens, seconds), Prefill(tokens, tokens, tokens, 1.0)
                )
    learner.remove(0)
    assert learner.attention("p") > 0
    learner.remove(1)
    assert learner.attention("p") == 0.0
