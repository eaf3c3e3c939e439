"""Requests and their tokens by priority, so that it is known how much stands before one of a given priority."""

from __future__ import annotations


class Tally:
    """Counts requests and tokens by priority."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many requests are counted."""
        return self._count

    def add(self, priority: int, cost: float) -> None:
        """Count a request of `cost` tokens."""
        count, sum_ = self._sums.get(priority, (0, 0.0))
        self._sums[priority] = count + 1, sum_ + cost
        self._count += 1

    def remove(self, priority: int, cost: float) -> None:
        """Count a request no more that was added with the same numbers."""
        count, sum_ = self._sums[priority]
        if count > 1:
            self._sums[priority] = count - 1, max(sum_ - cost, 0.0)
        else:
            del self._sums[priority]
        self._count -= 1

    def before(self, priority: int) -> tuple[int, float]:
        """Return the requests, and their tokens, of this priority and above."""
        counted = [sums for level, sums in self._sums.items() if level >= priority]
        return sum(count for count, _ in counted), sum(cost for _, cost in counted)
