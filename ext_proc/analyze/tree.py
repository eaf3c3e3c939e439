"""Sums over a prefix of a row of numbers that change, each in logarithmic time (Fenwick, 1994)."""

from __future__ import annotations

from collections.abc import Sequence


class SumTree:
    """A row of numbers, all zero at first."""

    def __init__(self, length: int) -> None:
        self.total = 0
        self._sums = [0] * (length + 1)

    def __len__(self) -> int:
        return len(self._sums) - 1

    def add(self, place: int, number: int) -> None:
        """Add to the number at a place."""
        self.total += number
        sums, place, end = self._sums, place + 1, len(self._sums)
        while place < end:
            sums[place] += number
            place += place & -place

    def sum_to(self, place: int) -> int:
        """Return the sum of the numbers up to a place, that one included."""
        sums, place, found = self._sums, place + 1, 0
        while place:
            found += sums[place]
            place &= place - 1
        return found

    def fill(self, numbers: Sequence[int]) -> None:
        """Replace all numbers; those that are not given become zero."""
        sums = [0, *numbers, *[0] * (len(self) - len(numbers))]
        for place in range(1, len(sums)):
            parent = place + (place & -place)
            if parent < len(sums):
                sums[parent] += sums[place]
        self._sums = sums
        self.total = sum(numbers)
