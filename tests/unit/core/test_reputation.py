"""What is said of endpoints."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.health import HealthMonitor
from ext_proc.core.model import Ending, Usage
from ext_proc.core.reputation import Reputations
from tests.unit.core.builders import Fleet, endpoints

NOTES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(Ending),
        st.floats(0, 1000),
        st.floats(0, 500),
        st.one_of(st.none(), st.integers(0, 100_000)),
    ),
    max_size=30,
)


def test_the_unknown_are_as_good_as_the_others() -> None:
    """Nobody is known: all are perfect. Some are known: the others get their mean."""
    reputations, fleet = Reputations(), endpoints(3)
    assert reputations.scores(fleet, 0.0) == [1.0, 1.0, 1.0]
    for _ in range(5):
        reputations.note(fleet[0], Ending.RESET, 0.0)
    bad, *rest = reputations.scores(fleet, 0.0)
    assert bad == pytest.approx(0.9**5)
    assert rest == pytest.approx([bad, bad])


def test_success_is_what_lately_happened() -> None:
    """A failure takes a tenth, and answers bring it back."""
    reputations, (endpoint, other) = Reputations(), endpoints(2)
    reputations.note(other, Ending.OK, 0.0)
    reputations.note(endpoint, Ending.SERVER_ERROR, 0.0)
    assert reputations.scores([endpoint, other], 0.0) == pytest.approx([0.9, 1.0])
    reputations.note(endpoint, Ending.OK, 0.0)
    assert reputations.scores([endpoint, other], 0.0)[0] == pytest.approx(0.91)


@pytest.mark.parametrize(
    "ending", [Ending.CLIENT_ERROR, Ending.CLIENT_GONE, Ending.OVERLOADED, Ending.LOCAL, Ending.LOST], ids=str
)
def test_what_is_not_the_engines_doing_is_not_held_against_it(ending: Ending) -> None:
    """A client's error, a busy engine and a lost log entry change nothing."""
    reputations, fleet = Reputations(), endpoints(2)
    reputations.note(fleet[0], ending, 0.0, seconds=9.0, tokens=1)
    assert reputations.scores(fleet, 0.0) == [1.0, 1.0]
    assert reputations.latencies(fleet) == [None, None]


def test_slowness_is_relative_to_peers() -> None:
    """Three times the usual time per token is a third of the score, and being faster than usual earns nothing."""
    reputations, fleet = Reputations(), endpoints(4)
    for endpoint, seconds in zip(fleet, (1.0, 2.0, 2.0, 6.0), strict=True):
        reputations.note(endpoint, Ending.OK, 0.0, seconds=seconds, tokens=100)
    assert reputations.scores(fleet, 0.0) == pytest.approx([1.0, 1.0, 1.0, 1 / 3])
    assert reputations.latencies(fleet) == pytest.approx([0.01, 0.02, 0.02, 0.06])


def test_long_answers_are_not_taken_for_slow_ones() -> None:
    """Time counts per token."""
    reputations, fleet = Reputations(), endpoints(2)
    reputations.note(fleet[0], Ending.OK, 0.0, seconds=10.0, tokens=1000)
    reputations.note(fleet[1], Ending.OK, 0.0, seconds=0.1, tokens=10)
    assert reputations.scores(fleet, 0.0) == pytest.approx([1.0, 1.0])


def test_old_news_fade() -> None:
    """After two minutes half of it is left, after an hour nothing: who gets no requests can mend its name."""
    reputations, fleet = Reputations(), endpoints(2)
    for _ in range(20):
        reputations.note(fleet[0], Ending.RESET, 0.0)
    reputations.note(fleet[1], Ending.OK, 120.0)
    bad = 0.9**20
    neutral = (0.5 * bad + 1.0) / 1.5
    assert reputations.scores(fleet, 120.0) == pytest.approx([0.5 * bad + 0.5 * neutral, 1.0])
    reputations.note(fleet[1], Ending.OK, 3600.0)
    assert reputations.scores(fleet, 3600.0) == pytest.approx([1.0, 1.0])


def test_a_successor_in_the_slot_inherits_nothing() -> None:
    """Another endpoint with the same slot begins anew."""
    reputations, (endpoint, other) = Reputations(), endpoints(2)
    for _ in range(5):
        reputations.note(endpoint, Ending.RESET, 0.0)
    reputations.note(other, Ending.OK, 0.0)
    successor = msgspec.structs.replace(endpoint, generation=1)
    assert reputations.scores([successor, other], 0.0) == [1.0, 1.0]
    reputations.note(successor, Ending.RESET, 0.0)
    assert reputations.scores([successor, other], 0.0) == pytest.approx([0.9, 1.0])


def test_health_weighs_on_the_score() -> None:
    """An ejected endpoint, one that is only being tried and a degraded one score less than their record."""
    health = HealthMonitor()
    reputations, fleet = Reputations(health), endpoints(4)
    health.joined(fleet)
    for endpoint in fleet[1:]:
        health.note(endpoint, Ending.CONNECT_FAILURE, 0.0)
    health.dispatched(fleet[2], 5.0)
    assert reputations.scores(fleet, 5.0) == pytest.approx([1.0, 0.1, 0.5, 0.7])


@given(NOTES, st.floats(0, 1e9))
def test_scores_stay_between_0_and_1(notes: list[tuple[int, Ending, float, float, int | None]], now: float) -> None:
    """Whatever happened, and however the clock stands, a score is a score."""
    reputations, fleet = Reputations(), endpoints(4)
    for slot, ending, at, seconds, tokens in notes:
        reputations.note(fleet[slot], ending, at, seconds=seconds, tokens=tokens)
    assert all(0 <= score <= 1 + 1e-9 for score in reputations.scores(fleet, now))


def test_outcomes_make_reputations() -> None:
    """What Envoy logs reaches the endpoint that served, and one that was tried in vain before it."""
    fleet = Fleet(3)
    decision = fleet.pick()
    fleet.settle(
        decision, served=decision.endpoints[1].address, attempts=2, duration=2.0, usage=Usage(completion_tokens=100)
    )
    knowledge = fleet.picker.knowledge
    assert knowledge.reputations.latencies(decision.endpoints) == [None, pytest.approx(0.02), None]
    refused, served, _ = knowledge.reputations.scores(decision.endpoints, fleet.now)
    assert refused < 0.1 < served
    assert set(knowledge.served.lately(decision.endpoints[1], 4)) == {"acme/chat-8b"}
    assert not knowledge.served.lately(decision.endpoints[0], 4)


def test_few_outcomes_wait_to_be_learnt() -> None:
    """Some dozens at most, whatever comes of nobody asking."""
    reputations, (endpoint,) = Reputations(), endpoints(1)
    for _ in range(1000):
        reputations.note(endpoint, Ending.OK, 0.0)
    assert len(reputations._waiting) < 100


@given(NOTES)
def test_it_makes_no_difference_when_somebody_asks(notes: list[tuple[int, Ending, float, float, int | None]]) -> None:
    """Outcomes are learnt in their order, be it one by one or many at once."""
    fleet, asked, unasked = endpoints(4), Reputations(), Reputations()
    for place, ending, now, seconds, tokens in notes:
        for reputations in (asked, unasked):
            reputations.note(fleet[place], ending, now, seconds=seconds, tokens=tokens)
        asked.scores(fleet, now)
    assert asked.scores(fleet, 1000.0) == unasked.scores(fleet, 1000.0)
    assert asked.latencies(fleet) == unasked.latencies(fleet)
