"""What a sleeping engine does is no illness."""

from __future__ import annotations

import pytest

from ext_proc.core.health_states import HealthState, Verdict
from ext_proc.core.model import Ending
from tests.unit.core.builders import Fleet, request


def test_nothing_counts_while_it_sleeps() -> None:
    """Neither refused requests nor failed probes nor metrics that stay away, however many."""
    fleet = Fleet(3)
    one, health = fleet.endpoints[0], fleet.health
    health.slept(one)
    for second in range(30):
        health.note(one, Ending.CONNECT_FAILURE, fleet.now + second, fleet.now)
        health.note(one, Ending.TIMEOUT, fleet.now + second)
        health.probed(one, Verdict.FAILED, "refused", fleet.now + second)
        health.scraped(one, fleet.now + second, answered=False)
        health.compared(one, 50.0, fleet.now + second)
        health.tick(fleet.now + second)
    assert (health.state(one.slot), health.all_ready, fleet.notes.states) == (HealthState.READY, True, [])


def test_it_comes_back_slowly_and_owes_nothing() -> None:
    """It has a small share at first; what was sent before it woke has no say, what is sent later has."""
    fleet = Fleet(3)
    one, health = fleet.endpoints[0], fleet.health
    health.slept(one)
    fleet.now += 60.0
    health.woke(one, fleet.now)
    assert (health.state(one.slot), health.status(one.slot, fleet.now).share < 0.2) == (HealthState.READY, True)
    health.note(one, Ending.CONNECT_FAILURE, fleet.now + 1.0, fleet.now - 1.0)
    assert health.state(one.slot) is HealthState.READY
    health.note(one, Ending.CONNECT_FAILURE, fleet.now + 2.0, fleet.now + 1.5)
    assert health.state(one.slot) is HealthState.EJECTED


def test_an_ejection_of_whom_sleep_was_not_heard_yet_is_forgotten() -> None:
    """Requests fail for a moment before anybody hears of the sleep; when it wakes that is no longer held against it."""
    fleet = Fleet(3)
    one, health = fleet.endpoints[0], fleet.health
    for _ in range(3):
        health.note(one, Ending.SERVER_ERROR, fleet.now)
    assert health.state(one.slot) is HealthState.EJECTED
    health.slept(one)
    health.woke(one, fleet.now + 5.0)
    status = health.status(one.slot, fleet.now + 5.0)
    assert (status.state, status.ejections, status.failure_ratio) == (HealthState.READY, 0, 0.0)


@pytest.mark.parametrize(
    ("probing", "says_so", "expected"),
    [
        (True, True, HealthState.READY),
        (True, False, HealthState.WARMING),
        (False, False, HealthState.READY),
    ],
)
def test_silence_is_no_proof_of_life(probing: bool, says_so: bool, expected: HealthState) -> None:
    """Of whose sleep nothing is heard any more, probes have to show that it serves, where they run."""
    fleet = Fleet(2)
    one, health = fleet.endpoints[0], fleet.health
    health.configure(health._book.policy, probing=probing)
    health.slept(one)
    health.woke(one, fleet.now, says_so=says_so)
    assert health.state(one.slot) is expected
    for _ in range(2):
        health.probed(one, Verdict.GOOD, "http_200", fleet.now)
    assert health.state(one.slot) is HealthState.READY


def test_the_reputation_of_a_sleeper_does_not_suffer() -> None:
    """A request that hung there while nobody knew ends as a failure of nobody."""
    fleet = Fleet(3)
    one = fleet.endpoints[0]
    decision = fleet.pick(request(), subset={one.address})
    fleet.health.slept(one)
    fleet.now += 30.0
    fleet.settle(decision, Ending.TIMEOUT)
    fleet.health.woke(one, fleet.now)
    again = fleet.pick(request(), subset={one.address})
    assert set(fleet.picker.knowledge.reputations.scores(fleet.endpoints, fleet.now)) == {1.0}
    fleet.settle(again, Ending.TIMEOUT)
    assert min(fleet.picker.knowledge.reputations.scores(fleet.endpoints, fleet.now)) < 1.0


def test_a_successor_owes_its_predecessor_no_deafness() -> None:
    """Who comes in the slot of one that slept is listened to."""
    fleet = Fleet(2)
    one = fleet.endpoints[0]
    fleet.health.slept(one)
    fleet.health.remove(one.slot)
    fleet.health.note(one, Ending.CONNECT_FAILURE, fleet.now)
    assert fleet.health.state(one.slot) is HealthState.EJECTED
