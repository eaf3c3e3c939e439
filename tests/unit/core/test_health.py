"""Health of endpoints by the outcomes of requests."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ext_proc.core.candidates import Candidates
from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import HealthPolicy, HealthState
from ext_proc.core.model import ILLNESS, Ending, Endpoint
from tests.unit.core.builders import Notes, endpoints, request

A, B, C, D = FLEET = Candidates(endpoints(4))
POLICY = HealthPolicy(failures=2, ejection=5.0, max_ejection=18.0, trial=30.0, slow_start=0.0)
ASKED = request()


@pytest.fixture
def notes() -> Notes:
    """What the monitor reports."""
    return Notes()


@pytest.fixture
def health(notes: Notes) -> HealthMonitor:
    """A monitor of four endpoints that ejects for 5, 10 and then 18 seconds."""
    monitor = HealthMonitor(POLICY, notes)
    monitor.joined(FLEET)
    return monitor


def admitted(health: HealthMonitor, now: float, candidates: Sequence[Endpoint] = FLEET) -> Sequence[Endpoint]:
    """Ask who may be chosen."""
    return health.admit(candidates, ASKED, now, random.Random(1))


def eject(health: HealthMonitor, now: float = 0.0, endpoint: Endpoint = A) -> None:
    """Let a connection be refused."""
    health.note(endpoint, Ending.CONNECT_FAILURE, now)


def test_without_history_all_are_ready(health: HealthMonitor) -> None:
    """Nothing known of an endpoint is no reason to avoid it, and nothing new is made."""
    assert health.state(A.slot) is HealthState.READY
    assert admitted(health, 0.0) is FLEET


@pytest.mark.parametrize("ending", sorted(ILLNESS - {Ending.CONNECT_FAILURE}))
def test_illness_in_a_row_ejects(health: HealthMonitor, ending: Ending) -> None:
    """One ill outcome is forgiven, the second in a row is not."""
    health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY
    health.note(A, ending, 1.0)
    assert list(admitted(health, 1.0)) == [B, C, D]


def test_a_good_answer_breaks_the_row(health: HealthMonitor) -> None:
    """A failure between many good answers ejects nobody."""
    for ending in (Ending.RESET, *[Ending.OK] * 30) * 5:
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY


@pytest.mark.parametrize("seed", range(20))
def test_a_share_of_failures_ejects(health: HealthMonitor, notes: Notes, seed: int) -> None:
    """An engine that fails three requests of ten is found out within two dozen of them, though never two in a row."""
    generator, ill = random.Random(seed), False
    for _ in range(24):
        ill = not ill and generator.random() < 0.43
        health.note(A, Ending.SERVER_ERROR if ill else Ending.OK, 0.0)
        if health.state(A.slot) is HealthState.EJECTED:
            break
    assert (A.address, "ejected") in notes.states


def test_a_share_of_failures_needs_samples(health: HealthMonitor) -> None:
    """One failure of three requests is a third, and no evidence."""
    for ending in (Ending.SERVER_ERROR, Ending.OK, Ending.OK, Ending.SERVER_ERROR, Ending.OK):
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY


def test_a_small_share_of_failures_degrades(health: HealthMonitor, notes: Notes) -> None:
    """One request in nine fails: that is shown and excludes nobody; when it ends, the endpoint is ready again."""
    for ending in ([Ending.OK] * 8 + [Ending.RESET]) * 12:
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.DEGRADED
    assert admitted(health, 0.0) is FLEET
    for _ in range(40):
        health.note(A, Ending.OK, 1.0)
    assert notes.states == [(A.address, "degraded"), (A.address, "ready")]
    assert health.all_ready


def test_old_failures_fade(health: HealthMonitor) -> None:
    """What was an hour ago needs no good answers to be forgotten."""
    for ending in ([Ending.OK] * 8 + [Ending.RESET]) * 12:
        health.note(A, ending, 0.0)
    health.tick(3600.0)
    assert health.state(A.slot) is HealthState.READY


def test_a_refused_connection_ejects_at_once(health: HealthMonitor, notes: Notes) -> None:
    """Nobody listens there, so no second request needs to find out; the change is reported."""
    eject(health)
    assert list(admitted(health, 0.0)) == [B, C, D]
    assert notes.states == [(A.address, "ejected")]


@pytest.mark.parametrize("ending", sorted(frozenset(Ending) - ILLNESS))
def test_b17_what_is_not_illness_ejects_nobody(health: HealthMonitor, ending: Ending) -> None:
    """Clients' errors, busy engines, clients that left and lost log entries do not speak against an engine."""
    for _ in range(60):
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.READY


def test_half_of_a_pool_may_be_ejected(health: HealthMonitor) -> None:
    """The third of four that fails is degraded and gets a small share, not none; the alarm is on."""
    assert health.panics() == {"p": False}
    for endpoint in (A, B, C):
        eject(health, endpoint=endpoint)
    assert [health.state(endpoint.slot) for endpoint in FLEET] == ["ejected", "ejected", "degraded", "ready"]
    generator = random.Random(2)
    rows = [health.admit(FLEET, ASKED, 0.0, generator) for _ in range(1000)]
    assert {tuple(map(FLEET.index, row)) for row in rows} == {(2, 3), (3,)}
    assert 50 < sum(C in row for row in rows) < 150
    assert health.status(C.slot, 0.0).share == pytest.approx(0.1)
    assert health.panics() == {"p": True}


def test_the_alarm_goes_by_those_that_an_operator_left_in(health: HealthMonitor) -> None:
    """Two of four are drained and the others ejected, as many as may be: those are used all the same."""
    eject(health)
    eject(health, endpoint=B)
    absent: set[int] = set()
    health.miss(lambda: absent)
    assert health.panics() == {"p": False}
    absent |= {C.slot, D.slot}
    assert health.panics() == {"p": True}
    assert list(health.admit((A, B), ASKED, 0.0, random.Random(0))) == [A, B]
    absent |= {A.slot, B.slot}
    assert health.panics() == {"p": False}


def test_a_throttled_endpoint_recovers(health: HealthMonitor) -> None:
    """Good answers give it its share back, and the alarm is off."""
    for endpoint in (A, B, C):
        eject(health, endpoint=endpoint)
    for _ in range(30):
        health.note(C, Ending.OK, 1.0)
    assert health.state(C.slot) is HealthState.READY
    assert list(admitted(health, 1.0)) == [C, D]
    assert health.panics() == {"p": False}


def test_if_all_are_ill_all_are_tried(health: HealthMonitor) -> None:
    """A fleet that seems dead as a whole is still tried, the ejected half of it too."""
    for endpoint in FLEET:
        eject(health, endpoint=endpoint)
    assert admitted(health, 0.0) is FLEET
    assert health.panics() == {"p": True}


def test_if_all_candidates_of_a_model_are_ejected_they_are_tried(health: HealthMonitor) -> None:
    """The share that may be ejected is one of the pool; a model may have fewer endpoints."""
    eject(health, endpoint=A)
    eject(health, endpoint=B)
    few = Candidates([A, B])
    assert admitted(health, 0.0, few) is few


def test_an_answer_of_an_ejected_endpoint_brings_it_back(health: HealthMonitor, notes: Notes) -> None:
    """Where ejected ones are tried for want of others, a good answer is as good as a trial."""
    eject(health)
    health.note(A, Ending.OK, 2.0, sent=1.0)
    assert [state for _, state in notes.states] == ["ejected", "probing", "ready"]


def test_an_endpoint_alone_is_never_ejected() -> None:
    """There is nobody else, so it is degraded at most."""
    health = HealthMonitor(POLICY)
    health.joined([A])
    eject(health)
    assert health.state(A.slot) is HealthState.DEGRADED
    assert list(admitted(health, 0.0, Candidates([A]))) == [A]


def test_one_trial_at_a_time(health: HealthMonitor) -> None:
    """After its ejection an endpoint gets one request, and no other until that one has ended."""
    eject(health)
    assert A not in admitted(health, 4.9)
    assert A in admitted(health, 5.0)
    health.dispatched(A, 5.0)
    assert health.state(A.slot) is HealthState.PROBING
    assert A not in admitted(health, 5.1)


def test_an_answered_trial_readmits(health: HealthMonitor, notes: Notes) -> None:
    """A good answer makes the endpoint ready for everybody."""
    eject(health)
    health.dispatched(A, 5.0)
    health.note(A, Ending.OK, 6.0)
    assert A in admitted(health, 6.0)
    assert [state for _, state in notes.states] == ["ejected", "probing", "ready"]


@pytest.mark.parametrize("ending", [Ending.OVERLOADED, Ending.CLIENT_GONE, Ending.LOCAL])
def test_a_trial_that_says_nothing_makes_room_for_another(health: HealthMonitor, ending: Ending) -> None:
    """A busy engine and a client that left neither end an ejection nor begin another."""
    eject(health)
    health.dispatched(A, 5.0)
    health.note(A, ending, 6.0, sent=5.0)
    assert health.state(A.slot) is HealthState.PROBING
    assert A in admitted(health, 6.0)


def test_each_ejection_lasts_longer(health: HealthMonitor) -> None:
    """A failed trial doubles the time, up to the maximum."""
    now, lasts = 0.0, []
    for _ in range(4):
        eject(health, now)
        ready = next(step for step in range(1, 100) if A in admitted(health, now + step))
        lasts.append(ready)
        now += ready
        health.dispatched(A, now)
    assert lasts == [5, 10, 18, 18]


def test_a_flapping_endpoint_is_not_forgiven_at_once(health: HealthMonitor) -> None:
    """A good answer between two failures leaves the next ejection longer; minutes of health make it short again."""
    eject(health)
    health.dispatched(A, 5.0)
    health.note(A, Ending.OK, 6.0)
    eject(health, 7.0)
    assert health.status(A.slot, 7.0).until == 17.0
    health.dispatched(A, 17.0)
    health.note(A, Ending.OK, 18.0)
    eject(health, 18.0 + 2 * POLICY.forgiveness)
    assert health.status(A.slot, 140.0).until == 18.0 + 2 * POLICY.forgiveness + 5.0


def test_a_readmitted_endpoint_is_on_a_short_leash(health: HealthMonitor) -> None:
    """What failed before counts on, so that a few further failures among good answers eject again."""
    for ending in (Ending.OK, Ending.SERVER_ERROR) * 6:
        health.note(A, ending, 0.0)
    assert health.state(A.slot) is HealthState.EJECTED
    health.dispatched(A, 5.0)
    for ending in (Ending.OK, Ending.OK, Ending.SERVER_ERROR) * 2 + (Ending.OK, Ending.SERVER_ERROR):
        health.note(A, ending, 6.0)
    assert health.state(A.slot) is HealthState.EJECTED


def test_a_lost_trial_makes_room_for_another(health: HealthMonitor) -> None:
    """If nothing is heard of a trial, the next one may go after a while."""
    eject(health)
    health.dispatched(A, 5.0)
    assert A not in admitted(health, 34.9)
    assert A in admitted(health, 35.0)


def test_a_late_answer_does_not_readmit(health: HealthMonitor) -> None:
    """An answer that began before the ejection says nothing about the time since."""
    eject(health)
    health.note(A, Ending.OK, 1.0)
    health.note(A, Ending.OK, 1.0, sent=-1.0)
    assert health.state(A.slot) is HealthState.EJECTED


@pytest.mark.parametrize("ending", [Ending.OK, Ending.TIMEOUT])
def test_what_was_sent_before_an_ejection_has_no_say_after_it(health: HealthMonitor, ending: Ending) -> None:
    """Streams that end late neither fail nor answer the trial that runs meanwhile."""
    eject(health, 10.0)
    health.dispatched(A, 15.0)
    health.note(A, ending, 16.0, sent=9.0)
    assert health.state(A.slot) is HealthState.PROBING
    health.note(A, Ending.OK, 16.0, sent=15.0)
    assert health.state(A.slot) is HealthState.READY


def test_e04_a_removed_slot_is_forgotten(health: HealthMonitor) -> None:
    """A successor in the slot does not inherit the ejection."""
    eject(health)
    health.remove(A.slot)
    assert health.state(A.slot) is HealthState.READY
    assert admitted(health, 0.0) is FLEET


def test_a_slow_endpoint_is_degraded(health: HealthMonitor) -> None:
    """Much slower than its peers is shown, until it has clearly eased; it stays a candidate."""
    health.compared(A, 3.5, 0.0)
    assert health.state(A.slot) is HealthState.DEGRADED
    assert "3.5 times slower" in health.status(A.slot, 0.0).evidence
    health.compared(A, 2.5, 5.0)
    assert health.state(A.slot) is HealthState.DEGRADED
    health.compared(A, 1.5, 10.0)
    assert health.state(A.slot) is HealthState.READY


def test_evidence_is_kept_for_people(health: HealthMonitor) -> None:
    """State, since when, why, until when, and which share of requests: what an operator asks first."""
    for _ in range(2):
        health.note(A, Ending.SERVER_ERROR, 3.0)
    status = health.status(A.slot, 4.0)
    assert (status.state, status.since, status.until, status.share) == (HealthState.EJECTED, 3.0, 8.0, 0.0)
    assert status.evidence == "2 ill in a row, last: server_error; 32% failed lately; ejected for 5 s"


def test_a_changed_policy_counts_from_now_on(health: HealthMonitor) -> None:
    """The configuration is read again without a restart."""
    health.configure(HealthPolicy(ejection=1.0), probing=False)
    eject(health)
    assert health.status(A.slot, 0.0).until == 1.0


def test_failures_raise_doubts(health: HealthMonitor) -> None:
    """Whoever probes is asked to look at once."""
    doubted: list[Endpoint] = []
    health.doubts = doubted.append
    health.note(A, Ending.RESET, 0.0)
    health.note(B, Ending.OVERLOADED, 0.0)
    assert doubted == [A]
