"""Clients that give up on an engine that hangs."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from math import inf

import pytest

from ext_proc.core.health_states import HealthPolicy, Verdict
from ext_proc.core.model import Decision, Ending
from ext_proc.core.patience import Patience
from ext_proc.core.strategies import Strategy
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.round_robin import RoundRobin
from tests.unit.core.builders import Fleet, request, text


@pytest.mark.parametrize(
    ("usual", "waited", "expected"),
    [(0.2, 30.0, True), (0.2, 9.0, False), (8.0, 30.0, False), (8.0, 41.0, True)],
)
def test_patience_is_relative(usual: float, waited: float, expected: bool) -> None:
    """Thirty seconds without a byte are a failure where others take a fifth of one, and nothing where queues are."""
    patience = Patience()
    assert not patience.is_exhausted("p", 1000.0)
    for _ in range(10):
        patience.began("p", usual)
    assert patience.is_exhausted("p", waited) is expected
    assert not patience.is_exhausted("other", waited)


def test_e15_an_engine_that_only_answers_probes_is_ejected() -> None:
    """Its requests end with clients that leave after thirty seconds; two of those are enough (E15)."""
    fleet = Fleet(2)
    dead, alive = fleet.endpoints
    for _ in range(2):
        stuck = [fleet.pick(subset={dead.address}) for _ in range(2)]
        for _ in range(30):
            fleet.settle(fleet.pick(subset={alive.address}), first_byte=0.3, duration=1.0)
            fleet.now += 1.0
        for decision in stuck:
            fleet.settle(decision, Ending.CLIENT_GONE, duration=30.0)
    assert fleet.health.state(dead.slot) == "ejected"
    assert fleet.now <= 1060.0


def test_clients_that_leave_early_say_nothing() -> None:
    """Nor do those that had begun to read."""
    fleet = Fleet(2)
    fleet.settle(fleet.pick(), first_byte=0.3)
    for fields in ({"duration": 2.0}, {"duration": 60.0, "first_byte": 0.4}):
        for _ in range(10):
            fleet.settle(fleet.pick(subset={fleet.endpoints[0].address}), Ending.CLIENT_GONE, **fields)
    assert fleet.health.all_ready


@pytest.mark.parametrize("strategy", [LeastWait, RoundRobin])
def test_an_engine_whose_health_checks_lie_is_left_to_one_request_at_a_time(strategy: type[Strategy]) -> None:
    """Every probe is good and no request is answered: out within a minute, and then one at most per interval (E15)."""
    fleet = Fleet(2, strategy())
    fleet.health.configure(HealthPolicy(), probing=True)
    dead, alive = fleet.endpoints
    begin, ejected_at = fleet.now, inf
    sent: list[float] = []
    running: list[tuple[float, int, Decision]] = []
    for step in range(5 * 300):
        fleet.now = begin + step / 5
        while running and running[0][0] <= fleet.now:
            _, _, decision = heappop(running)
            if decision.chosen.address == alive.address:
                fleet.settle(decision, first_byte=0.3, duration=1.0)
            else:
                fleet.settle(decision, Ending.CLIENT_GONE, duration=30.0)
        decision = fleet.pick(request(text(step)))
        is_dead = decision.chosen.address == dead.address
        heappush(running, (fleet.now + (30.0 if is_dead else 1.0), step, decision))
        if is_dead and fleet.health.state(dead.slot) != "ready":
            sent.append(fleet.now)
        for endpoint in fleet.endpoints if step % 5 == 0 else ():
            fleet.health.probed(endpoint, Verdict.GOOD, "200", fleet.now)
        fleet.health.tick(fleet.now)
        if fleet.health.state(dead.slot) == "ejected":
            ejected_at = min(ejected_at, fleet.now)
    assert ejected_at - begin <= 60.0
    assert len(sent) > 2, "it must have its chance to come back"
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(sent))
    assert fleet.health.state(alive.slot) == "ready"
