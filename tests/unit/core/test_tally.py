"""Sums by priority."""

from __future__ import annotations

from ext_proc.core.tally import Tally


def test_only_this_priority_and_above_stand_before_one() -> None:
    """Lower ones do not count."""
    tally = Tally()
    for priority in (-1, 0, 0, 5):
        tally.add(priority, 10.0)
    assert [tally.before(level) for level in (-1, 0, 5, 6)] == [(4, 40.0), (3, 30.0), (1, 10.0), (0, 0)]
    tally.remove(0, 10.0)
    tally.remove(-1, 10.0)
    assert len(tally) == 2
    assert tally.before(-1) == (2, 20.0)
