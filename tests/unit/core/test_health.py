"""Passive health of endpoints."""

from __future__ import annotations

import pytest

from ext_proc.core.health import HealthMonitor, HealthPolicy, HealthState
from ext_proc.core.model import ILLNESS, Ending
from tests.unit.core.builders import Notes, endpoints

A, B, C = FLEET = endpoints(3)
POLICY = HealthPolicy(failures=2, ejection=5.0, max_ejection=18.0, probe_timeout=30.0)


@pytest.fixture
def notes() -> Notes:
    """What the monitor reports."""
    return Notes()


@pytest.fixture
def health(notes: Notes) -> HealthMonitor:
    """A monitor that ejects for 5, 10 and then 18 seconds."""
    return HealthMonitor(POLICY, notes)


def _eject(health: HealthMonitor, now: float = 0.0) -> None:
    health.note(A, Ending.CONNECT_FAILURE, now)


def test_without_history_all_are_ready(health: HealthMonitor) -> None:
    """Nothing known of an endpoint is no reason to avoid it."""
    assert health.state(A.slot) is HealthState.READY
    assert list(health.eligible(FLEET, 0.0)) == [A, B, C]


@pytest.mark.parametrize("ending", sorted(ILLNESS - {Ending.CONNECT_FAILURE}))
def test_illness_in_a_row_ejects(health: HealthMonitor, ending: Ending) -> None:
    """One ill outcome is forgiven, the second in a row is not."""
    health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY
    health.note(A, ending, 1.0)
    assert list(health.eligible(FLEET, 1.0)) == [B, C]


def test_a_good_answer_breaks_the_row(health: HealthMonitor) -> None:
    """Failures that alternate with good answers eject nobody."""
    for ending in (Ending.RESET, Ending.OK) * 5:
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY


def test_a_refused_connection_ejects_at_once(health: HealthMonitor, notes: Notes) -> None:
    """Nobody listens there, so no second request needs to find out; the change is reported."""
    _eject(health)
    assert list(health.eligible(FLEET, 0.0)) == [B, C]
    assert notes.states == [(A.address, "ejected")]


@pytest.mark.parametrize("ending", sorted(frozenset(Ending) - ILLNESS))
def test_b17_what_is_not_illness_ejects_nobody(health: HealthMonitor, ending: Ending) -> None:
    """Clients' errors, busy engines, clients that left and lost log entries do not speak against an engine."""
    for _ in range(60):
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY


def test_if_all_are_ejected_none_is(health: HealthMonitor) -> None:
    """A fleet that seems dead as a whole is still tried."""
    for endpoint in FLEET:
        health.note(endpoint, Ending.CONNECT_FAILURE, 0.0)
    assert list(health.eligible(FLEET, 0.0)) == [A, B, C]


def test_one_probe_at_a_time(health: HealthMonitor) -> None:
    """After its ejection an endpoint gets one request, and no other until that one has ended."""
    _eject(health)
    assert A in health.eligible(FLEET, 5.0)
    health.dispatched(A, 5.0)
    assert health.state(A.slot) is HealthState.PROBING
    assert A not in health.eligible(FLEET, 5.1)


def test_an_answered_probe_readmits(health: HealthMonitor, notes: Notes) -> None:
    """A good answer makes the endpoint ready for everybody."""
    _eject(health)
    health.dispatched(A, 5.0)
    health.note(A, Ending.OK, 6.0)
    assert A in health.eligible(FLEET, 6.0)
    assert [state for _, state in notes.states] == ["ejected", "probing", "ready"]


def test_each_ejection_lasts_longer(health: HealthMonitor) -> None:
    """A failed probe doubles the time, up to the maximum."""
    now, lasts = 0.0, []
    for _ in range(4):
        health.note(A, Ending.CONNECT_FAILURE, now)
        ready = next(step for step in range(1, 100) if A in health.eligible(FLEET, now + step))
        lasts.append(ready)
        now += ready
        health.dispatched(A, now)
    assert lasts == [5, 10, 18, 18]


def test_a_lost_probe_makes_room_for_another(health: HealthMonitor) -> None:
    """If nothing is heard of a probe, the next one may go after a while."""
    _eject(health)
    health.dispatched(A, 5.0)
    assert A not in health.eligible(FLEET, 34.9)
    assert A in health.eligible(FLEET, 35.0)


def test_a_late_answer_does_not_readmit(health: HealthMonitor) -> None:
    """An answer that began before the ejection says nothing about the time since."""
    _eject(health)
    health.note(A, Ending.OK, 1.0)
    assert health.state(A.slot) is HealthState.EJECTED


@pytest.mark.parametrize("ending", [Ending.OK, Ending.TIMEOUT])
def test_what_was_sent_before_an_ejection_has_no_say_after_it(health: HealthMonitor, ending: Ending) -> None:
    """Streams that end late neither fail nor answer the probe that runs meanwhile."""
    _eject(health, 10.0)
    health.dispatched(A, 15.0)
    health.note(A, ending, 16.0, sent=9.0)
    assert health.state(A.slot) is HealthState.PROBING
    health.note(A, Ending.OK, 16.0, sent=15.0)
    assert health.state(A.slot) is HealthState.READY


def test_lasting_health_is_rewarded(health: HealthMonitor) -> None:
    """After more good answers the next ejection is as short as the first."""
    _eject(health)
    health.dispatched(A, 5.0)
    for _ in range(2):
        health.note(A, Ending.OK, 6.0)
    _eject(health, 10.0)
    assert A in health.eligible(FLEET, 15.0)


def test_e04_a_removed_slot_is_forgotten(health: HealthMonitor) -> None:
    """A successor in the slot does not inherit the ejection."""
    _eject(health)
    health.remove(A.slot)
    assert health.state(A.slot) is HealthState.READY
    assert A in health.eligible(FLEET, 0.0)
