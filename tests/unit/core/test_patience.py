"""Clients that give up on an engine that hangs."""

from __future__ import annotations

import pytest

from ext_proc.core.model import Ending
from ext_proc.core.patience import Patience
from tests.unit.core.builders import Fleet


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
