"""A prefix cache of one engine: blocks in order of use, bounded in tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ext_proc.core.model import BlockHash


class PrefixCache:
    """Holds the most recently used blocks; of one prompt the first block counts as used last.

    Args:
        capacity: tokens it holds.
    """

    def __init__(self, capacity: float) -> None:
        self.tokens = 0
        self._capacity = capacity
        self._blocks: OrderedDict[BlockHash, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, chain: Sequence[BlockHash]) -> int:
        """Return how many of the first blocks of a prompt it holds; a held block's predecessors are held too."""
        blocks = self._blocks
        if not chain or chain[0] not in blocks:
            return 0
        low, high = 1, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def use(self, chain: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Take in a prompt, and let go of what was not used for longest."""
        blocks = self._blocks
        for block, size in zip(reversed(chain), reversed(sizes), strict=True):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = size
                self.tokens += size
        while self.tokens > self._capacity:
            self.tokens -= blocks.popitem(last=False)[1]
