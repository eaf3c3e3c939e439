"""Requests in flight that begin alike: a prefix that many want is worth a copy on an engine that has nothing to do."""

from __future__ import annotations

from ext_proc.core.model import BlockHash


class Siblings:
    """Counts requests by the last block of their prompt that any endpoint held when they were placed.

    Those who share a system prompt share that block, for what follows it is new. Requests that came all at once and
    may never come again, such as the branches of one agent, are told from lasting demand by those that ended since.
    A block is kept while requests with it are in flight, so there are never more blocks than leases.
    """

    def __init__(self) -> None:
        self._running: dict[BlockHash, int] = {}
        self._ended: dict[BlockHash, int] = {}

    def begin(self, block: BlockHash) -> None:
        """Count a request that was placed."""
        self._running[block] = self._running.get(block, 0) + 1

    def end(self, block: BlockHash) -> None:
        """Count one that is no longer in flight."""
        left = self._running.get(block, 0) - 1
        if left > 0:
            self._running[block] = left
            self._ended[block] = self._ended.get(block, 0) + 1
        else:
            self._running.pop(block, None)
            self._ended.pop(block, None)

    def of(self, block: BlockHash) -> tuple[int, int]:
        """Return how many are in flight, and that or, if fewer, how many have ended while others were."""
        running = self._running.get(block, 0)
        return running, min(running, self._ended.get(block, 0))

    def __len__(self) -> int:
        """Return the number of blocks counted."""
        return len(self._running)
