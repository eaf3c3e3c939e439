"""random, round-robin, least-request, and strategies of a stranger."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from ext_proc.core.load import Load
from ext_proc.core.model import Ending, Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking, Strategy
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_tokens import LeastTokens
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.random import Random
from ext_proc.core.strategies.reputation import Reputation
from ext_proc.core.strategies.round_robin import RoundRobin
from tests.unit.core.builders import CHAT, Fleet, context, endpoints, request, shares


class Quiet:
    """A third party's strategy, as its documentation shows it."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Prefer the endpoint with the fewest tokens in flight."""
        return Ranking([float(load.tokens) for load in context.loads])


@pytest.mark.parametrize(
    "strategy",
    [LeastWait(), LeastRequest(), Random(), RoundRobin(), Quiet()],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_every_strategy_gives_one_cost_per_candidate(strategy: Strategy, count: int) -> None:
    """Costs are as many as candidates, in any size of fleet."""
    ranking = strategy.rank(request(), endpoints(count), context([Load() for _ in range(count)]))
    assert len(ranking.costs) == count


def test_a_strategy_of_ten_lines_needs_no_change_elsewhere() -> None:
    """A class with one method decides where requests go."""
    fleet = Fleet(2, Quiet())
    fleet.occupy(0, 1, tokens=5000)
    fleet.occupy(1, 3, tokens=10)
    assert fleet.pick().chosen == fleet.endpoints[1]
    assert not fleet.notes.failures


def test_least_tokens_prefers_the_fewest_tokens() -> None:
    """Tokens count, however many requests they belong to."""
    loads = [Load(9, 900), Load(1, 1000), Load(2, 800)]
    assert LeastTokens().rank(request(), endpoints(3), context(loads)).costs == [900.0, 1000.0, 800.0]


def test_reputation_shares_by_score() -> None:
    """An endpoint with half the score carries about half the requests, and keeps getting some."""
    fleet = Fleet(2, Reputation())
    reputations = fleet.picker.knowledge.reputations
    for endpoint, seconds in zip(fleet.endpoints, (1.0, 3.0), strict=True):
        reputations.note(endpoint, Ending.OK, fleet.now, seconds=seconds, tokens=100)
    counts = shares([fleet.pick() for _ in range(100)])
    assert counts[fleet.endpoints[1].address] == pytest.approx(40, abs=2)


def test_least_request_prefers_the_fewest_in_flight() -> None:
    """Requests count, whatever their length."""
    loads = [Load(2, 10), Load(1, 90_000), Load(3, 10)]
    assert LeastRequest().rank(request(), endpoints(3), context(loads)).costs == [2.0, 1.0, 3.0]


def test_random_spreads_evenly() -> None:
    """Every endpoint gets about its share, however busy it is."""
    fleet = Fleet(4, Random())
    fleet.occupy(0, 50)
    counts = shares([fleet.pick() for _ in range(400)])
    assert all(70 <= counts[endpoint.address] <= 130 for endpoint in fleet.endpoints)


def test_round_robin_takes_turns() -> None:
    """Endpoints follow each other in their order, again and again."""
    fleet = Fleet(3, RoundRobin())
    chosen = [fleet.pick().chosen.slot for _ in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_names_the_next_in_turn_as_fallback() -> None:
    """A retry goes where the next request would have gone."""
    fleet = Fleet(3, RoundRobin())
    assert [endpoint.slot for endpoint in fleet.pick().endpoints] == [0, 1, 2]
    assert [endpoint.slot for endpoint in fleet.pick().endpoints] == [1, 2, 0]


def test_round_robin_is_fair_between_models_that_alternate() -> None:
    """Requests for another model in between do not make it skip an endpoint."""
    fleet = Fleet(2, RoundRobin())
    fleet.fill("q", "10.0.0.31:8000", "10.0.0.32:8000", models=frozenset({"acme/embed-1"}))
    fleet.picker.strategies = {**fleet.picker.strategies, "q": ("round-robin", RoundRobin())}
    made = [fleet.pick(request(model=("acme/chat-8b", "acme/embed-1")[turn % 2])) for turn in range(40)]
    assert set(shares(made).values()) == {10}


def test_round_robin_goes_on_when_the_fleet_changes() -> None:
    """An endpoint that joins takes its turn, and the others keep theirs."""
    fleet = Fleet(2, RoundRobin())
    for _ in range(3):
        fleet.pick()
    fleet.fill("p", *(endpoint.address for endpoint in fleet.endpoints), "10.0.0.99:8000", models=CHAT)
    fleet.health.tick(fleet.now)
    fleet.now += 60.0
    assert set(shares([fleet.pick() for _ in range(9)]).values()) == {3}


class Broken:
    """Gives whatever a test wants it to give."""

    def __init__(self, given: object) -> None:
        self.given = given

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> object:
        """Raise or return what was given."""
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    "given",
    [
        ZeroDivisionError(),
        None,
        Ranking([1.0]),
        Ranking([1.0, 2.0, 3.0]),
        Ranking([1.0, float("nan")]),
        Ranking([1.0, float("inf")]),
        Ranking([1.0, "2"]),
        Ranking([1.0, 2.0], prefills=[1.0]),
        Ranking([1.0, 2.0], prefills=[1.0, float("nan")]),
        Ranking([1.0, 2.0], queues=[1.0] * 3),
        Ranking([1.0, -float("inf")]),
        Ranking([1.0, 10**400]),
        Ranking([1.0, None]),
        Ranking([1.0, 1j]),
        Ranking([]),
        Ranking(None),
        Ranking("12"),
        [1.0, 2.0],
        SimpleNamespace(costs=[1.0, 2.0]),
        Ranking([1.0, 2.0], prefills=[1.0, -1.0]),
        Ranking([1.0, 2.0], queues=[1.0, float("nan")]),
        Ranking([1.0, 2.0], memories=[1.0, "2"]),
        Ranking([1.0, 2.0], copying=[-1.0]),
        Ranking([1.0, 2.0], copying=[-1.0, float("nan")]),
        Ranking([1.0, 2.0], filters=("gpu",)),
        Ranking([1.0, 2.0], filters=7),
        Ranking([1.0, 2.0], favourite=0, reason=7),
        Ranking([1.0, 2.0], favourite=0, reason="tenant\r\nset-cookie: a=b"),
        Ranking([1.0, 2.0], favourite=2),
        Ranking([1.0, 2.0], favourite=-1),
        Ranking([1.0, 2.0], favourite="0"),
        Ranking([1.0, 2.0], works=[1.0]),
        Ranking([1.0, 2.0], scores={"x": [1.0]}),
        Ranking([1.0, 2.0], scores=7),
        Ranking([1.0, 2.0], inside=7),
        SystemExit(3),
    ],
    ids=[
        "raises",
        "none",
        "too few",
        "too many",
        "nan",
        "inf",
        "text",
        "short prefills",
        "nan prefill",
        "long queues",
        "minus inf",
        "overflows",
        "nothing",
        "complex",
        "empty",
        "no costs",
        "text in place of costs",
        "a list",
        "not a ranking",
        "negative prefill",
        "nan queue",
        "text memory",
        "short copying",
        "nan copying",
        "odd filters",
        "filters not a row",
        "reason not text",
        "reason no code",
        "favourite beyond",
        "favourite before",
        "favourite not a number",
        "short works",
        "short scores",
        "scores no mapping",
        "inside not text",
        "exits",
    ],
)
def test_a_strategy_that_fails_is_replaced_and_counted(given: object) -> None:
    """The request goes to the endpoint with the fewest requests, and the observer hears of it."""
    fleet = Fleet(2, Broken(given))
    fleet.occupy(0, 2)
    fleet.notes.failures.clear()
    decision = fleet.pick()
    assert (decision.chosen, decision.strategy) == (fleet.endpoints[1], "least-request")
    assert decision.replaced == "tried"
    assert [name for name, _ in fleet.notes.failures] == ["tried"]
    assert len(list(decision.terms)) == 2


@pytest.mark.parametrize("given", [(2.0, 1.0), range(2, 0, -1), [True, False]], ids=["tuple", "range", "booleans"])
def test_costs_may_be_any_numbers_in_a_row(given: Sequence[float]) -> None:
    """A stranger need not return a list of floats to be understood."""
    fleet = Fleet(2, Broken(Ranking(given)))
    assert fleet.pick().chosen == fleet.endpoints[1]
    assert not fleet.notes.failures


def test_an_interrupt_is_no_failure_of_a_strategy() -> None:
    """Ctrl-C that arrives while a strategy works still ends kvpicker."""
    with pytest.raises(KeyboardInterrupt):
        Fleet(2, Broken(KeyboardInterrupt())).pick()
