"""Gives out small integers: the slots that state is kept by."""

from __future__ import annotations

import heapq


class Slots:
    """Small integers, the lowest free one first."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        """Return a free slot."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def release(self, slot: int) -> None:
        """Let a slot be taken again."""
        heapq.heappush(self._free, slot)
