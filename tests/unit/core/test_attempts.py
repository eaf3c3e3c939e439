"""Who is to blame for attempts that failed."""

from __future__ import annotations

import pytest

from ext_proc.core.attempts import Attempt
from ext_proc.core.model import Ending, Outcome
from tests.unit.core.builders import Fleet


@pytest.fixture
def fleet() -> Fleet:
    """Three idle equal endpoints."""
    return Fleet(3)


def successes(fleet: Fleet) -> list[int]:
    """How often each endpoint was blamed, by its share of good endings."""
    reputations = fleet.picker.knowledge.reputations._records
    found = [reputations.get(endpoint.slot) for endpoint in fleet.endpoints]
    return [0 if record is None else round((1 - record.success) * 10) for record in found]


def test_a_failed_attempt_is_blamed_at_once_and_once(fleet: Fleet) -> None:
    """The endpoint need not wait for the end of the request, which goes on elsewhere, and is not blamed again then."""
    decision = fleet.pick()
    attempt = Attempt(decision.chosen.address, Ending.RESET)
    for _ in range(2):
        fleet.feedback.failed(attempt, fleet.now)
    place = fleet.endpoints.index(decision.chosen)
    assert successes(fleet)[place] == 1
    outcome = Outcome(decision_id=decision.id, ending=Ending.OK, served=decision.endpoints[1].address, attempts=2)
    assert fleet.feedback.settle(outcome, fleet.now, [attempt])
    assert sum(successes(fleet)) == 1


def test_the_endpoint_that_was_tried_is_blamed_not_the_one_that_was_named(fleet: Fleet) -> None:
    """Where Envoy tells whom it tried, the order of the decision does not count."""
    decision = fleet.pick()
    first, second, third = decision.endpoints
    outcome = Outcome(decision_id=decision.id, ending=Ending.OK, served=second.address, attempts=2)
    fleet.feedback.settle(outcome, fleet.now, [Attempt(third.address, Ending.CONNECT_FAILURE)])
    addresses = [endpoint.address for endpoint in fleet.endpoints]
    blamed = dict(zip(addresses, successes(fleet), strict=True))
    assert (blamed[first.address], blamed[third.address]) == (0, 1)


def test_the_last_attempt_is_blamed_by_the_outcome(fleet: Fleet) -> None:
    """Its entry among the attempts is not counted besides; if it came first and was, the outcome does not repeat it."""
    decision = fleet.pick()
    for noted in (False, True):
        made = decision if not noted else fleet.pick()
        attempt = Attempt(made.chosen.address, Ending.RESET)
        if noted:
            fleet.feedback.failed(attempt, fleet.now)
        outcome = Outcome(decision_id=made.id, ending=Ending.RESET, served=made.chosen.address)
        fleet.feedback.settle(outcome, fleet.now, [attempt])
    assert sum(successes(fleet)) == 2


@pytest.mark.parametrize("ending", [Ending.CLIENT_GONE, Ending.OVERLOADED, Ending.LOCAL, Ending.OK])
def test_what_is_no_illness_is_not_blamed(fleet: Fleet, ending: Ending) -> None:
    """A client that left while an attempt ran, or a busy engine, speaks against nobody."""
    fleet.feedback.failed(Attempt(fleet.endpoints[0].address, ending), fleet.now)
    fleet.feedback.failed(Attempt("10.9.9.9:1", Ending.RESET), fleet.now)
    assert successes(fleet) == [0, 0, 0]
