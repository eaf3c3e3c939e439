"""The KV cache of a simulated engine: blocks with reference counts, and an LRU of those that nobody uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ext_proc.core.model import BlockHash


class KvBlocks:
    """Blocks are named once computed, private before; a second copy of a named block stays private.

    Args:
        capacity: blocks of the cache.
        journal: gets (True, name) of each block that becomes visible and (False, name) of each that is evicted; None
            where nobody listens.
    """

    __slots__ = ("_idle", "_journal", "_users", "capacity", "private")

    def __init__(self, capacity: int, journal: list[tuple[bool, BlockHash]] | None = None) -> None:
        self.capacity = capacity
        self.private = 0
        self._users: dict[BlockHash, int] = {}
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        self._journal = journal

    @property
    def available(self) -> int:
        """Blocks that can be had: empty ones, and those that would be evicted."""
        return self.capacity - self.private - len(self._users) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that running requests hold."""
        return self.private + len(self._users) - len(self._idle)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._users

    def depth(self, chain: Sequence[BlockHash], limit: int) -> int:
        """Return how many leading blocks of a chain are visible, at most `limit`."""
        users = self._users
        depth = 0
        for block in chain[:limit]:
            if block not in users:
                break
            depth += 1
        return depth

    def needed(self, chain: Sequence[BlockHash], depth: int, blocks: int) -> int:
        """Return how many available blocks a request takes away that finds `depth` blocks and holds `blocks`."""
        idle = self._idle
        return blocks - depth + sum(block in idle for block in chain[:depth])

    def share(self, chain: Sequence[BlockHash]) -> None:
        """Use visible blocks."""
        users, idle = self._users, self._idle
        for block in chain:
            if not users[block]:
                del idle[block]
            users[block] += 1

    def allocate(self, count: int) -> None:
        """Take private blocks, and evict the least recently used named ones for them.

        Raises:
            MemoryError: so many are not available.
        """
        missing = count - (self.capacity - self.private - len(self._users))
        if missing > len(self._idle):
            raise MemoryError(f"{count} blocks are wanted and {self.available} available")
        for _ in range(missing):
            block, _ = self._idle.popitem(last=False)
            del self._users[block]
            if self._journal is not None:
                self._journal.append((False, block))
        self.private += count

    def publish(self, block: BlockHash) -> bool:
        """Name a private block; False if there is a copy already, and then it stays private."""
        if block in self._users:
            return False
        self.private -= 1
        self._users[block] = 1
        if self._journal is not None:
            self._journal.append((True, block))
        return True

    def release(self, named: Sequence[BlockHash], private: int) -> None:
        """Give back a request's blocks, its tail first, so that the tail is evicted first."""
        self.private -= private
        users, idle = self._users, self._idle
        for block in reversed(named):
            users[block] -= 1
            if not users[block]:
                idle[block] = None
