"""session-affinity."""

from __future__ import annotations

from ext_proc.core.load import Load
from ext_proc.core.model import Ending
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.session_affinity import SessionAffinity
from tests.unit.core.builders import Fleet, context, endpoints, request


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


def test_the_sessions_endpoint_is_the_favourite_and_costs_what_it_costs() -> None:
    """The explanation shows the other strategy's terms unaltered, and that the session outweighed them."""
    seen = context([Load(), Load(5)])
    seen.knowledge.sessions.tie("acme/chat-8b\ns-1", "10.0.0.1:8000", 0.0)
    ranking = SessionAffinity(then=LeastRequest()).rank(request(session="s-1"), endpoints(2), seen)
    assert (ranking.costs, ranking.favourite, ranking.reason) == ([0.0, 5.0], 1, "session")
    assert SessionAffinity().rank(request(session="s-2"), endpoints(2), seen).favourite is None


def test_the_session_wins_whatever_the_other_strategy_gives() -> None:
    """With least-wait, costs may be seconds or hours; the session's endpoint is chosen nevertheless."""
    fleet = Fleet(3, SessionAffinity(then=LeastWait()))
    first = fleet.pick(request(session="s-1"))
    fleet.occupy(fleet.endpoints.index(first.chosen), 5, tokens=10**8)
    again = fleet.pick(request(session="s-1"))
    assert again.chosen == first.chosen
    assert again.terms[fleet.endpoints.index(first.chosen)].prefill > 0
