"""The share that new and returning endpoints get."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.candidates import Candidates
from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import HealthPolicy, HealthState
from ext_proc.core.model import Ending
from ext_proc.core.slow_start import SlowRow, ramp
from tests.unit.core.builders import CHAT, Fleet, endpoints, request, shares, text

POLICY = HealthPolicy(slow_start=10.0)


def monitor(first: int, more: int) -> tuple[HealthMonitor, Candidates]:
    """Make a monitor of a fleet that grew at 100 s."""
    fleet = Candidates(endpoints(first + more))
    health = HealthMonitor(POLICY)
    health.joined(fleet[:first])
    if more:
        health.joined(fleet[first:])
        health.tick(100.0)
    return health, fleet


def share_of(health: HealthMonitor, fleet: Candidates, place: int, now: float) -> float:
    """Return the share of decisions that an endpoint is a candidate of."""
    generator = random.Random(5)
    rows = [health.admit(fleet, request(), now, generator) for _ in range(2000)]
    return sum(fleet[place] in row for row in rows) / 2000


def test_the_first_fleet_starts_at_once() -> None:
    """When kvpicker starts, all endpoints are new, and somebody must serve."""
    health, fleet = monitor(3, 0)
    assert health.admit(fleet, request(), 0.0, random.Random(1)) is fleet


def test_the_share_of_a_newcomer_rises() -> None:
    """From a tenth of the decisions to half of them, in a fleet of four; then it is one of many."""
    health, fleet = monitor(3, 1)
    found = [share_of(health, fleet, 3, 100.0 + age) for age in (0.0, 5.0, 9.9, 10.0)]
    assert found == pytest.approx([0.1, 0.3, 0.5, 1.0], abs=0.05)
    assert share_of(health, fleet, 0, 100.0) == 1.0
    health.tick(110.0)
    assert health.admit(fleet, request(), 110.0, random.Random(1)) is fleet
    assert health.all_ready


def test_its_clock_starts_with_its_first_request_or_tick() -> None:
    """A decision that is only rehearsed does not start it."""
    fleet = Candidates(endpoints(4))
    health = HealthMonitor(POLICY)
    health.joined(fleet[:3])
    health.joined(fleet[3:])
    assert share_of(health, fleet, 3, 50.0) == pytest.approx(0.1, abs=0.03)
    assert share_of(health, fleet, 3, 500.0) == pytest.approx(0.1, abs=0.03)
    health.dispatched(fleet[3], 500.0)
    assert share_of(health, fleet, 3, 505.0) == pytest.approx(0.3, abs=0.05)


def test_a_returning_endpoint_starts_slowly() -> None:
    """Its cache may be gone, and its illness may not."""
    health, fleet = monitor(4, 0)
    health.note(fleet[0], Ending.CONNECT_FAILURE, 0.0)
    health.dispatched(fleet[0], 20.0)
    health.note(fleet[0], Ending.OK, 21.0)
    assert health.state(fleet[0].slot) is HealthState.READY
    assert health.status(fleet[0].slot, 21.0).share == pytest.approx(0.1)
    assert share_of(health, fleet, 0, 21.0) == pytest.approx(0.1, abs=0.03)


def test_many_newcomers_leave_room_for_each_other() -> None:
    """When a fleet grows tenfold, every newcomer gets its chance, and the first two are still in every decision."""
    health, fleet = monitor(2, 98)
    generator = random.Random(3)
    rows = [health.admit(fleet, request(), 109.0, generator) for _ in range(3000)]
    assert all(fleet[0] in row and fleet[1] in row for row in rows)
    seen = {endpoint.slot for row in rows for endpoint in row}
    assert seen == {endpoint.slot for endpoint in fleet}


def test_newcomers_that_outnumber_the_old_share_alike() -> None:
    """One of them is in every decision, and each as often as the others."""
    health, fleet = monitor(1, 3)
    found = [share_of(health, fleet, place, 109.9) for place in range(4)]
    assert found == pytest.approx([1.0, 0.333, 0.333, 0.333], abs=0.05)


def test_if_only_newcomers_are_left_they_serve() -> None:
    """A share of nothing would be nothing."""
    health, fleet = monitor(1, 2)
    few = Candidates(fleet[1:])
    assert list(health.admit(few, request(), 100.0, random.Random(1))) == list(few)


def test_rows_are_kept_between_decisions() -> None:
    """A decision of a large fleet with one endpoint ill makes no new row of candidates."""
    health, fleet = monitor(100, 0)
    health.note(fleet[0], Ending.CONNECT_FAILURE, 0.0)
    generator = random.Random(1)
    assert health.admit(fleet, request(), 0.1, generator) is health.admit(fleet, request(), 0.2, generator)
    health.note(fleet[1], Ending.CONNECT_FAILURE, 0.3)
    assert fleet[1] not in health.admit(fleet, request(), 0.3, generator)


def test_an_equal_row_of_other_endpoints_is_another_row() -> None:
    """What was kept for candidates that are gone is not given for those that now lie at their place in memory."""
    health, fleet = monitor(3, 0)
    health.note(fleet[0], Ending.CONNECT_FAILURE, 0.0)
    for size in (3, 2, 3, 2) * 50:
        row = Candidates(fleet[:size])
        assert list(health.admit(row, request(), 0.1, random.Random(1))) == list(fleet[1:size])
        del row


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 3600))
def test_a_ramp_is_a_share(since: float, now: float, lasts: float) -> None:
    """Never nothing, never more than all, whatever the clock does."""
    assert 0.2 <= ramp(since, now, lasts) <= 1.0
    assert ramp(inf, now, 10.0) == 0.2


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 1000))
def test_the_order_of_candidates_is_kept(steady: int, slow: int, seed: int) -> None:
    """Whoever is let through, the rows are the candidates in their order, and the steady are always in them."""
    fleet = endpoints(steady + slow)
    shuffled = Candidates(random.Random(seed).sample(fleet, len(fleet)))
    row = SlowRow(shuffled, dict.fromkeys(range(steady, steady + slow), 0.0), 10.0)
    drawn = [endpoint.slot for endpoint in row.draw(5.0, random.Random(seed))]
    assert drawn == [endpoint.slot for endpoint in shuffled if endpoint.slot in set(drawn)]
    assert set(range(steady)) <= set(drawn)


def test_e14_a_new_replica_gets_its_share_of_new_prefixes() -> None:
    """Three busy engines with warm prefixes, one that joins cold: it is neither flooded nor forgotten (E14)."""
    fleet = Fleet(3)
    warm = [text(number) for number in range(30)]
    for number in range(60):
        fleet.pick(request(warm[number % 30]))
        fleet.now += 0.01
    homes = {prompt: fleet.pick(request(prompt)).chosen.address for prompt in warm}
    fleet.fill("p", *(endpoint.address for endpoint in fleet.endpoints), "10.0.0.99:8000", models=CHAT)
    fleet.health.tick(fleet.now)
    fresh, kept, running = [], 0, []
    for number in range(1000):
        prompt = warm[number % 60 // 2] if number % 2 else text(("new", number))
        decision = fleet.pick(request(prompt))
        running.append(decision)
        if number % 2:
            kept += decision.chosen.address == homes[prompt]
        else:
            fresh.append(decision)
        fleet.now += 0.01
        if len(running) > 80:
            fleet.settle(running.pop(0))
    assert 0.1 < shares(fresh)["10.0.0.99:8000"] / len(fresh) < 0.6
    assert kept / 500 >= 0.8
