"""Rows of candidates without some of them."""

from __future__ import annotations

from ext_proc.core.candidates import Candidates
from ext_proc.core.remainders import Remainders
from tests.unit.core.builders import Fleet


def test_what_is_left_is_made_once() -> None:
    """Until it is forgotten; a row that loses nobody stays what it is."""
    fleet, rows, asked = Fleet(3), Remainders(), list[int]()
    candidates = fleet.registry.snapshot.endpoints

    def out() -> set[int]:
        asked.append(1)
        return {fleet.endpoints[0].slot}

    left = rows.of(candidates, out)
    assert isinstance(left, Candidates)
    assert list(left) == list(fleet.endpoints[1:])
    assert rows.of(candidates, out) is left
    assert len(asked) == 1
    rows.forget()
    assert rows.of(candidates, set) is candidates


def test_rows_of_a_moment_are_filtered_and_not_kept() -> None:
    """A list made for one decision never comes again."""
    fleet, rows = Fleet(2), Remainders()
    made = list(fleet.endpoints)
    assert rows.of(made, lambda: {made[0].slot}) == made[1:]
    assert rows.of(made, set) is made
    assert not rows._rows


def test_rows_kept_are_bounded() -> None:
    """Candidates that are made for a moment do not pile up."""
    fleet, rows = Fleet(2), Remainders()
    for _ in range(500):
        rows.of(Candidates(fleet.endpoints), lambda: {fleet.endpoints[0].slot})
    assert len(rows._rows) <= 64
