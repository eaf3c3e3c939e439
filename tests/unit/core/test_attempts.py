"""Who is to blame for attempts that failed."""

from __future__ import annotations

import msgspec
import pytest

from ext_proc.core.attempts import Attempt, Blame
from ext_proc.core.model import Ending, Outcome
from tests.unit.core.builders import Fleet, request


@pytest.fixture
def fleet() -> Fleet:
    """Three idle equal endpoints."""
    return Fleet(3)


def successes(fleet: Fleet) -> list[int]:
    """How often each endpoint was blamed, by its share of good endings."""
    found = fleet.picker.knowledge.reputations._known(fleet.endpoints)
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


NAME = "req-7"


@pytest.mark.parametrize("first", ["log", "stream"])
@pytest.mark.parametrize("ending", [Ending.OK, Ending.RESET], ids=["answered elsewhere", "failed everywhere"])
def test_what_log_and_stream_both_tell_is_blamed_once(fleet: Fleet, first: str, ending: Ending) -> None:
    """In full duplex a stream sees who answered, and an access log of attempts may tell of the same before or after."""
    decision = fleet.pick(request(request_id=NAME))
    tried, other = decision.endpoints[:2]
    failed = [tried] if ending is Ending.OK else [tried, other]

    def tell_log() -> None:
        for endpoint in failed:
            fleet.feedback.failed(Attempt(endpoint.address, Ending.RESET, request_id=NAME), fleet.now)

    if first == "log":
        tell_log()
    outcome = Outcome(decision_id=decision.id, ending=ending, served=other.address, attempts=2)
    assert fleet.feedback.settle_stream(outcome, fleet.now)
    if first == "stream":
        tell_log()
    blamed = dict(zip((endpoint.address for endpoint in fleet.endpoints), successes(fleet), strict=True))
    assert {address for address, times in blamed.items() if times} == {endpoint.address for endpoint in failed}
    assert set(blamed.values()) == {0, 1}


def test_the_next_failure_of_a_request_with_the_same_name_counts(fleet: Fleet) -> None:
    """Clients choose names; one that gives all its requests the same one hides no failures."""
    for _ in range(2):
        decision = fleet.pick(request(request_id=NAME), subset={fleet.endpoints[0].address})
        outcome = Outcome(decision_id=decision.id, ending=Ending.RESET, served=decision.chosen.address)
        assert fleet.feedback.settle_stream(outcome, fleet.now)
        fleet.feedback.failed(Attempt(decision.chosen.address, Ending.RESET, request_id=NAME), fleet.now)
    before = successes(fleet)[0]
    fleet.feedback.failed(Attempt(fleet.endpoints[0].address, Ending.RESET, request_id=NAME), fleet.now)
    assert successes(fleet)[0] > before


def test_what_streams_told_is_bounded(fleet: Fleet) -> None:
    """Where no log tells of attempts, what it might is forgotten, the oldest first."""
    decision = fleet.pick(request(request_id="req-0"))
    blame = Blame(fleet.feedback._find, fleet.health, lambda: fleet.picker.knowledge.reputations)
    outcome = Outcome(decision_id=decision.id, ending=Ending.RESET, served=decision.chosen.address)
    for number in range(5_000):
        named = msgspec.structs.replace(decision, request=request(request_id=f"req-{number}"))
        blame.told(named, outcome, ())
    assert len(blame._told) == 4_096
    assert ("req-0", decision.chosen.address) not in blame._told


def counts(fleet: Fleet) -> dict[str, int]:
    """Return how many requests count at each endpoint."""
    return {endpoint.address: fleet.ledger.load(endpoint.slot).in_flight for endpoint in fleet.endpoints}


def test_a_request_counts_where_a_retry_took_it(fleet: Fleet) -> None:
    """At once by the order of the decision, and surely by what is heard of it while it runs; its end leaves nothing."""
    decision = fleet.pick(request(request_id=NAME))
    first, second, third = (endpoint.address for endpoint in decision.endpoints)
    fleet.feedback.failed(Attempt(first, Ending.CONNECT_FAILURE, request_id=NAME), fleet.now)
    assert counts(fleet) == {first: 0, second: 1, third: 0}
    fleet.feedback.renew(decision.id, fleet.now, third)
    assert counts(fleet) == {first: 0, second: 0, third: 1}
    fleet.feedback.renew(decision.id, fleet.now)
    assert counts(fleet) == {first: 0, second: 0, third: 1}
    fleet.settle(decision, served=third, attempts=3)
    assert counts(fleet) == {first: 0, second: 0, third: 0}
    assert {fleet.ledger.load(endpoint.slot).tokens for endpoint in fleet.endpoints} == {0}


@pytest.mark.parametrize("ending", [Ending.CUT, Ending.SERVER_ERROR, Ending.TIMEOUT])
def test_what_had_begun_is_not_taken_elsewhere(fleet: Fleet, ending: Ending) -> None:
    """Nor is a request that another endpoint was tried with than where it counts."""
    decision = fleet.pick(request(request_id=NAME))
    first, second, _ = (endpoint.address for endpoint in decision.endpoints)
    fleet.feedback.failed(Attempt(first, ending, request_id=NAME), fleet.now)
    fleet.feedback.failed(Attempt(second, Ending.RESET, request_id=NAME), fleet.now)
    assert counts(fleet)[first] == 1


def test_a_drain_waits_for_a_request_that_a_retry_brought(fleet: Fleet) -> None:
    """Though another endpoint was chosen for it."""
    decision = fleet.pick(request(request_id=NAME))
    first, second = decision.endpoints[:2]
    fleet.feedback.failed(Attempt(first.address, Ending.RESET, request_id=NAME), fleet.now)
    mark = fleet.lifecycle.drain(second, fleet.now, 60.0)
    assert not fleet.lifecycle.advance(fleet.now)
    assert (mark.stage, mark.running) == ("draining", 1)
    fleet.settle(decision, served=second.address, attempts=2)
    assert fleet.lifecycle.advance(fleet.now) == [mark]
    assert fleet.lifecycle.advance(fleet.now) == []
