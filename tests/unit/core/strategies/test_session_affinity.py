"""session-affinity."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ext_proc.core.ledger import Load
from ext_proc.core.model import Ending, Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.session_affinity import SessionAffinity
from tests.unit.core.builders import Fleet, context, endpoints, request


class Fixed:
    """Gives the costs it was made with."""

    def __init__(self, costs: list[float]) -> None:
        self.costs = tuple(costs)

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Give them."""
        return Ranking(list(self.costs))


def _fleet() -> Fleet:
    return Fleet(3, SessionAffinity(then=LeastRequest()))


def test_a_session_stays_where_it_began() -> None:
    """However busy its endpoint is meanwhile, the session goes on there, and the explanation says why."""
    fleet = _fleet()
    first = fleet.pick(request(session="s-1"))
    fleet.occupy(fleet.endpoints.index(first.chosen), 9)
    again = fleet.pick(request(session="s-1"))
    assert (again.chosen, again.reason) == (first.chosen, "session")
    assert fleet.pick(request(session="s-2")).chosen != first.chosen


def test_requests_without_a_session_go_where_the_other_strategy_says() -> None:
    """The other strategy ranks them alone."""
    fleet = _fleet()
    fleet.occupy(0, 2)
    fleet.occupy(1, 1)
    assert fleet.pick().chosen == fleet.endpoints[2]


def test_a_session_moves_once_when_its_endpoint_is_ejected() -> None:
    """It is given another endpoint, and stays there when the first one is well again."""
    fleet = _fleet()
    first = fleet.pick(request(session="s-1"))
    fleet.settle(first, Ending.CONNECT_FAILURE)
    second = fleet.pick(request(session="s-1"))
    assert second.chosen != first.chosen
    fleet.now += 60
    assert fleet.pick(request(session="s-1")).chosen == second.chosen


def test_a_session_moves_when_its_endpoint_is_gone() -> None:
    """An address that left the fleet is never named."""
    fleet = _fleet()
    first = fleet.pick(request(session="s-1"))
    left = [endpoint.address for endpoint in fleet.endpoints if endpoint != first.chosen]
    fleet.fill("p", *left, models=frozenset({"acme/chat-8b"}))
    assert fleet.pick(request(session="s-1")).chosen.address in left


def test_fallbacks_are_those_of_the_other_strategy() -> None:
    """A retry goes to the endpoint that is second best without the session."""
    fleet = _fleet()
    first = fleet.pick(request(session="s-1"))
    others = [place for place, endpoint in enumerate(fleet.endpoints) if endpoint != first.chosen]
    fleet.occupy(others[0], 2)
    assert fleet.pick(request(session="s-1")).endpoints[1] == fleet.endpoints[others[1]]


@pytest.mark.parametrize("costs", [[0.0, 0.0], [5.0, -3.0], [1e300, 1e-9], [1e18, 1e18]], ids=str)
def test_the_sessions_endpoint_costs_less_than_any_other(costs: list[float]) -> None:
    """Strictly, so that no tie has to be broken, and whatever the size of the costs."""
    seen = context([Load(), Load()])
    seen.knowledge.sessions.tie("acme/chat-8b\ns-1", "10.0.0.0:8000", 0.0)
    ranking = SessionAffinity(then=Fixed(costs)).rank(request(session="s-1"), endpoints(2), seen)
    assert ranking.costs[0] < ranking.costs[1] == costs[1]


def test_the_cost_is_lowest_whatever_the_other_strategy_gives() -> None:
    """With least-wait, costs may be seconds or hours; the session's endpoint is cheapest nevertheless."""
    fleet = Fleet(3, SessionAffinity(then=LeastWait()))
    first = fleet.pick(request(session="s-1"))
    fleet.occupy(fleet.endpoints.index(first.chosen), 5, tokens=10**8)
    again = fleet.pick(request(session="s-1"))
    assert again.chosen == first.chosen
    assert again.terms[fleet.endpoints.index(first.chosen)].prefill > 0
