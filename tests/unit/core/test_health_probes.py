"""Health of endpoints by active probes and by metrics that can or cannot be read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from ext_proc.core.candidates import Candidates
from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import HealthPolicy, HealthState, Verdict
from ext_proc.core.model import Ending, Endpoint
from tests.unit.core.builders import Notes, endpoints, request

A, B, C, D = FLEET = Candidates(endpoints(4))
(NEW,) = [endpoint for endpoint in endpoints(5) if endpoint.slot == 4]
ALL = Candidates([*FLEET, NEW])
POLICY = HealthPolicy(ejection=5.0, slow_start=0.0)


@pytest.fixture
def notes() -> Notes:
    """What the monitor reports."""
    return Notes()


@pytest.fixture
def health(notes: Notes) -> HealthMonitor:
    """A monitor of four endpoints which all answered a probe."""
    monitor = HealthMonitor(POLICY, notes)
    monitor.configure(POLICY, probing=True)
    monitor.joined(FLEET)
    for endpoint in FLEET:
        monitor.probed(endpoint, Verdict.GOOD, "http_200", 0.0)
    return monitor


def admitted(health: HealthMonitor, now: float, candidates: Sequence[Endpoint] = FLEET) -> list[Endpoint]:
    """Ask who may be chosen."""
    return list(health.admit(candidates, request(), now, random.Random(1)))


def failed(health: HealthMonitor, endpoint: Endpoint, *times: float) -> None:
    """Let probes fail."""
    for now in times:
        health.probed(endpoint, Verdict.FAILED, "refused", now)


def test_a_proven_endpoint_needs_no_memory(health: HealthMonitor) -> None:
    """After one good probe nothing is against anybody, and a decision has nothing to look at."""
    assert health.all_ready


def test_probes_in_vain_eject(health: HealthMonitor, notes: Notes) -> None:
    """One probe may get lost; two in a row, and no request answered meanwhile, are evidence."""
    failed(health, A, 5.0)
    assert notes.states == []
    failed(health, A, 6.0)
    assert notes.states == [(A.address, "ejected")]
    assert health.status(A.slot, 6.0).evidence == "2 probes failed; ejected for 5 s"


def test_one_probe_is_no_plural(notes: Notes) -> None:
    """A policy may ask for one failure only."""
    health = HealthMonitor(POLICY, notes)
    health.configure(msgspec.structs.replace(POLICY, failed_probes=1), probing=True)
    health.joined(FLEET)
    for endpoint in FLEET:
        health.probed(endpoint, Verdict.GOOD, "http_200", 0.0)
    failed(health, A, 5.0)
    assert health.status(A.slot, 5.0).evidence.startswith("1 probe failed;")


def test_requests_outweigh_probes(health: HealthMonitor, notes: Notes) -> None:
    """An engine too busy to answer probes, but not requests, is well."""
    failed(health, A, 5.0)
    for now in range(6, 20):
        health.note(A, Ending.OK, now - 0.5, sent=now - 0.9)
        failed(health, A, float(now))
    assert notes.states == []


def test_failing_probes_prolong_an_ejection(health: HealthMonitor) -> None:
    """While probes see the illness no request is spent on it; but not for ever, since the page may be what is ill."""
    health.note(A, Ending.CONNECT_FAILURE, 0.0)
    for now in range(1, 100):
        failed(health, A, float(now))
        if A in admitted(health, now):
            break
    assert now == 60


def test_good_probes_end_an_ejection_that_probes_confirmed(health: HealthMonitor, notes: Notes) -> None:
    """The first good one lets a trial request through, the second lets all through."""
    health.note(A, Ending.CONNECT_FAILURE, 0.0)
    failed(health, A, 1.0)
    health.probed(A, Verdict.GOOD, "http_200", 2.0)
    assert A in admitted(health, 2.0)
    health.dispatched(A, 2.0)
    assert A not in admitted(health, 2.0)
    health.probed(A, Verdict.GOOD, "http_200", 3.0)
    assert A in admitted(health, 3.0)
    assert [state for _, state in notes.states] == ["ejected", "probing", "ready"]


def test_good_probes_do_not_excuse_what_they_cannot_see(health: HealthMonitor) -> None:
    """An engine that answers its page of health and fails requests stays ejected."""
    for _ in range(2):
        health.note(A, Ending.SERVER_ERROR, 0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        health.probed(A, Verdict.GOOD, "http_200", now)
    assert health.state(A.slot) is HealthState.EJECTED


def test_a_failed_probe_ends_a_trial(health: HealthMonitor) -> None:
    """Nothing is waited for from an engine that does not answer."""
    health.note(A, Ending.CONNECT_FAILURE, 0.0)
    health.dispatched(A, 5.0)
    failed(health, A, 6.0)
    assert health.state(A.slot) is HealthState.EJECTED


def test_e02_a_newcomer_warms_up(health: HealthMonitor, notes: Notes) -> None:
    """It gets no request before two probes in a row were good, however long that takes."""
    health.joined([NEW])
    assert admitted(health, 0.0, ALL) == list(FLEET)
    failed(health, NEW, 1.0, 2.0, 3.0)
    health.probed(NEW, Verdict.GOOD, "http_200", 4.0)
    failed(health, NEW, 5.0)
    health.probed(NEW, Verdict.GOOD, "http_200", 6.0)
    assert health.state(NEW.slot) is HealthState.WARMING
    assert admitted(health, 6.0, ALL) == list(FLEET)
    health.probed(NEW, Verdict.GOOD, "http_200", 7.0)
    assert admitted(health, 7.0, ALL) == list(ALL)
    assert notes.states == [(NEW.address, "ready")]


def test_a_newcomer_without_a_page_of_health_joins(health: HealthMonitor) -> None:
    """404 says that somebody is there, which has to do."""
    health.joined([NEW])
    health.probed(NEW, Verdict.UNSUPPORTED, "http_404", 1.0)
    assert health.state(NEW.slot) is HealthState.READY


def test_an_engine_that_says_it_loads_warms_up(health: HealthMonitor) -> None:
    """A loading engine's 503 takes it out without an ejection, and two good probes bring it back."""
    health.probed(A, Verdict.LOADING, "http_503", 1.0)
    assert health.state(A.slot) is HealthState.WARMING
    assert A not in admitted(health, 1.0)
    for now in (2.0, 3.0):
        health.probed(A, Verdict.GOOD, "http_200", now)
    assert health.state(A.slot) is HealthState.READY


def test_a_busy_engine_is_neither_ill_nor_loading(health: HealthMonitor) -> None:
    """It is alive, which also takes back the probes that failed before."""
    for now in range(1, 20):
        health.probed(A, Verdict.FAILED if now % 2 else Verdict.BUSY, "http_429", float(now))
    assert health.state(A.slot) is HealthState.READY


def test_if_all_say_they_load_nobody_is_left(health: HealthMonitor) -> None:
    """Then a request would fail for certain, and the client is told to come again."""
    for endpoint in FLEET:
        health.probed(endpoint, Verdict.LOADING, "http_503", 1.0)
    assert admitted(health, 1.0) == []


def test_the_first_endpoints_are_believed() -> None:
    """When kvpicker starts, nobody waits for probes; who then does not answer one was never up."""
    health = HealthMonitor(POLICY)
    health.configure(POLICY, probing=True)
    health.joined(FLEET)
    assert admitted(health, 0.0) == list(FLEET)
    failed(health, A, 0.1)
    assert health.state(A.slot) is HealthState.WARMING
    assert admitted(health, 0.1) == [B, C, D]


def test_probes_that_requests_contradict_are_not_believed() -> None:
    """Where only Envoy can reach the engines, the first one to answer must not get all the traffic."""
    health = HealthMonitor(POLICY)
    health.configure(POLICY, probing=True)
    health.joined(FLEET)
    for endpoint in FLEET:
        failed(health, endpoint, 1.0, 2.0)
    assert admitted(health, 2.0) == list(FLEET)
    health.note(A, Ending.OK, 3.0, sent=2.5)
    assert admitted(health, 3.0) == list(FLEET)
    assert health.trust.lost
    failed(health, B, 4.0, 5.0, 6.0)
    health.joined([NEW])
    failed(health, NEW, 4.0)
    assert admitted(health, 6.0, ALL) == list(ALL)


def test_a_request_that_overtakes_a_probe_contradicts_nothing(health: HealthMonitor) -> None:
    """Where probes of others are good, an engine that has just recovered answered before it was probed again."""
    failed(health, A, 10.0, 11.0)
    health.note(A, Ending.OK, 12.0, sent=11.5)
    assert not health.trust.lost


def test_probes_are_believed_again_when_one_is_good(health: HealthMonitor) -> None:
    """One engine that can be reached is enough to tell that probes work."""
    failed(health, A, 100.0, 101.0)
    health.note(A, Ending.OK, 103.0, sent=102.5)
    assert health.trust.lost
    health.probed(B, Verdict.GOOD, "http_200", 104.0)
    assert not health.trust.lost


def test_nobody_waits_for_probes_that_were_switched_off(health: HealthMonitor) -> None:
    """A newcomer that warms up joins, and failed probes are forgotten."""
    health.joined([NEW])
    failed(health, A, 1.0)
    health.configure(POLICY, probing=False)
    health.tick(2.0)
    assert admitted(health, 2.0, ALL) == list(ALL)
    assert health.all_ready


def test_e18_one_rank_that_does_not_listen_takes_nobody_along() -> None:
    """Ports of one address are endpoints of their own."""
    fleet = Candidates(Endpoint(address=f"10.0.0.11:{8000 + rank}", pool="p", slot=rank) for rank in range(4))
    health = HealthMonitor(POLICY)
    health.joined(fleet)
    health.note(fleet[1], Ending.CONNECT_FAILURE, 0.0)
    assert admitted(health, 0.0, fleet) == [fleet[0], fleet[2], fleet[3]]


def test_metrics_that_stay_away_raise_doubts_and_then_degrade(health: HealthMonitor) -> None:
    """The page of metrics is no service; an engine whose probes are good is not ejected for it."""
    doubted: list[Endpoint] = []
    health.doubts = doubted.append
    health.scraped(A, 1.0, answered=False)
    assert doubted == [A]
    for now in range(2, 30):
        health.probed(A, Verdict.GOOD, "http_200", float(now))
        health.tick(float(now))
    assert health.state(A.slot) is HealthState.DEGRADED
    health.scraped(A, 30.0, answered=True)
    assert health.state(A.slot) is HealthState.READY


def test_silent_metrics_and_one_failed_probe_eject(health: HealthMonitor) -> None:
    """A process that hangs is found out by both together, sooner than by either."""
    health.scraped(A, 1.0, answered=False)
    failed(health, A, 2.0)
    assert health.state(A.slot) is HealthState.EJECTED


def test_silent_metrics_alone_eject_after_a_while() -> None:
    """Without probes an idle engine that hangs is found out by its metrics, unless those of half the pool fail."""
    health = HealthMonitor(POLICY)
    health.joined(FLEET)
    health.scraped(A, 1.0, answered=False)
    health.tick(10.9)
    assert health.state(A.slot) is HealthState.DEGRADED
    health.tick(11.0)
    assert health.state(A.slot) is HealthState.EJECTED
    for endpoint in (B, C, D):
        health.scraped(endpoint, 12.0, answered=False)
    health.tick(30.0)
    assert [health.state(endpoint.slot) for endpoint in (B, C, D)] == ["ready"] * 3
