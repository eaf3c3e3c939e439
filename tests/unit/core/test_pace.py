"""How fast places are given."""

from __future__ import annotations

import pytest

from ext_proc.core.pace import Pace, Rate

EXPECTED = Rate(10.0, 1000.0)


def seen(seconds: int, *given: int) -> Pace:
    """Let somebody wait so long, and each second give one place per priority named."""
    pace = Pace()
    for second in range(seconds):
        pace.pass_time(float(second), waiting=second > 0)
        for priority in given:
            pace.give(priority, 50.0)
    pace.pass_time(float(seconds), waiting=True)
    return pace


def test_before_anything_is_seen_the_expectation_counts() -> None:
    """And loses weight later."""
    assert Pace().rate(0, EXPECTED) == EXPECTED
    assert seen(60, 0, 0).rate(0, EXPECTED) == (pytest.approx(2.9, abs=0.3), pytest.approx(200, abs=20))


def test_places_that_go_to_higher_priorities_are_not_there_for_lower() -> None:
    """But those that go to lower ones would be there for higher."""
    pace = seen(60, 5, 5, 5, 0)
    assert pace.rate(5, Rate(4.0, 200.0)).requests == pytest.approx(4.0, abs=0.3)
    assert pace.rate(0, Rate(4.0, 200.0)).requests == pytest.approx(1.4, abs=0.3)


def test_time_without_anybody_waiting_says_nothing() -> None:
    """Nobody was served since nobody was there."""
    pace = seen(20, 0)
    before = pace.rate(0, EXPECTED)
    pace.pass_time(1000.0, waiting=False)
    assert pace.rate(0, EXPECTED) == before


def test_the_memory_is_of_priorities_that_are_served() -> None:
    """What was served long ago is forgotten."""
    pace = seen(1, *range(-100, 100))
    pace.pass_time(500.0, waiting=True)
    assert not pace._given
