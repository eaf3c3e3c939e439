"""Endpoints that are taken out, unready or asleep count neither for nor against how many may be ejected."""

from __future__ import annotations

import pytest

from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import HealthState
from ext_proc.core.model import Endpoint
from tests.unit.core.test_health import FLEET, POLICY, A, B, C, D, eject


@pytest.fixture
def health() -> HealthMonitor:
    """Four endpoints that nothing is known against."""
    monitor = HealthMonitor(POLICY)
    monitor.joined(FLEET)
    return monitor


@pytest.mark.parametrize(
    ("absent", "failing", "expected"),
    [
        ((), (A, B, C), ["ejected", "ejected", "degraded", "ready"]),
        ((A, B), (C, D), ["ready", "ready", "ejected", "degraded"]),
        ((A, B, C), (D,), ["ready", "ready", "ready", "degraded"]),
        ((A, B), (A, B, C), ["ejected", "ejected", "ejected", "ready"]),
        ((A, B), (C, A), ["ejected", "ready", "ejected", "ready"]),
    ],
)
def test_a_share_of_those_that_are_there_may_be_ejected(
    health: HealthMonitor, absent: tuple[Endpoint, ...], failing: tuple[Endpoint, ...], expected: list[str]
) -> None:
    """Half of what a drain or a sleep left, not half of the pool and so all of it; who is absent takes no place."""
    health.miss(lambda: {endpoint.slot for endpoint in absent})
    for endpoint in failing:
        eject(health, endpoint=endpoint)
    assert [health.state(endpoint.slot) for endpoint in FLEET] == expected


def test_engines_that_restart_say_nothing_of_the_others_metrics(health: HealthMonitor) -> None:
    """Two of four are drained and away; that one of the other two cannot be read speaks against that one."""
    health.miss(lambda: {A.slot, B.slot})
    for endpoint in (A, B, C):
        health.scraped(endpoint, 0.0, answered=False)
    health.tick(6.0)
    assert health.state(C.slot) is HealthState.READY, "one of two is half of them"
    health.miss(lambda: {A.slot})
    health.scraped(B, 6.0, answered=True)
    health.tick(7.0)
    assert health.state(C.slot) is HealthState.DEGRADED
