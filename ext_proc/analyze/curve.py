"""Reuse distances of a stream of prompts, and from them the hit ratio of an LRU cache of every size in one pass.

The distance of a block is the tokens of all blocks used since its last use, itself included; a cache that holds so
many tokens hits (Mattson et al., 1970). A prompt is used as a whole, its first block last, as engines free blocks, so
a block is never farther than those behind it and hits are always whole prefixes. Blocks are sampled by hash and the
sampling gets sparser when too many are tracked (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 15).
Misses are summed up and hits are the rest of an exact total, which is SHARDS-adj in other words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ext_proc.analyze.tree import SumTree
from ext_proc.core.model import BlockHash

HASH_RANGE = 2**64
TRACKED = 65_536
"""Blocks tracked at once. Up to so many different blocks all is exact; beyond, hit ratios are off by about 0.01, as
SHARDS finds with 8,192 already; by more for caches that are too small to hold the hottest prompts."""

_SHRINK_TO = 0.75


class ReuseCurve:
    """Measures reuse distances.

    Args:
        sizes: cache sizes in tokens at which hits are wanted; ascending.
        tracked: blocks tracked at once.
    """

    def __init__(self, sizes: Sequence[int], tracked: int = TRACKED) -> None:
        self.sizes = list(sizes)
        self.total = 0
        self.cold = 0.0
        self._missed_below = [0.0] * (len(self.sizes) + 1)
        self._tracked = tracked
        self._threshold = HASH_RANGE
        self._places: dict[BlockHash, int] = {}
        self._weights: dict[BlockHash, int] = {}
        self._tree = SumTree(4 * tracked)
        self._clock = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def rate(self) -> float:
        """The share of blocks that is tracked."""
        return self._threshold / HASH_RANGE

    def use(self, chain: Sequence[BlockHash], sizes: Sequence[int], tokens: int) -> float:
        """Count a prompt and return how many of its tokens are new, as far as the sample tells.

        Args:
            chain: its block hashes.
            sizes: tokens of each block.
            tokens: tokens of the whole prompt.
        """
        sampled = list(zip(chain, sizes, strict=True))
        if self._threshold < HASH_RANGE:
            sampled = [(block, size) for block, size in sampled if block < self._threshold]
        rate = self.rate
        self.total += tokens
        new = self._measure(sampled, rate) + tokens - sum(sizes)
        self.cold += new
        self._touch(sampled)
        if len(self._places) > self._tracked:
            self._thin_out()
        return new

    def reuse_ratio(self) -> float:
        """Return the share of tokens that an endless cache would have had."""
        return _share(self.total - self.cold, self.total)

    def hit_ratios(self) -> list[float]:
        """Return the share of tokens that a cache of each size would have had."""
        misses = self.cold
        ratios: list[float] = []
        # Distances beyond a size miss there: the largest size misses least.
        for place in range(len(self.sizes), 0, -1):
            misses += self._missed_below[place]
            ratios.append(_share(self.total - misses, self.total))
        return ratios[::-1]

    def hit_ratio(self, size: int) -> float:
        """Return the same for one of the sizes."""
        return self.hit_ratios()[self.sizes.index(size)]

    def working_set(self) -> float:
        """Return the tokens of all different blocks that are tracked now, scaled up by the sampling."""
        return self._tree.total / self.rate

    def _measure(self, sampled: Iterable[tuple[BlockHash, int]], rate: float) -> float:
        new = 0.0
        last_place, above = -1, 0
        for block, size in sampled:
            place = self._places.get(block)
            if place is None:
                new += size / rate
                continue
            # Neighbours of one prompt lie side by side: the sum grows by the one just passed.
            if place != last_place - 1:
                above = self._tree.total - self._tree.sum_to(place)
            distance = above / rate + size
            above += size
            last_place = place
            self._missed_below[bisect_left(self.sizes, distance)] += size / rate
        return new

    def _touch(self, sampled: list[tuple[BlockHash, int]]) -> None:
        tree = self._tree
        for block, size in reversed(sampled):
            place = self._places.pop(block, None)
            if place is not None:
                tree.add(place, -size)
            if self._clock == len(tree):
                self._renumber()
            self._places[block] = self._clock
            self._weights[block] = size
            tree.add(self._clock, size)
            self._clock += 1

    def _thin_out(self) -> None:
        """Sample fewer blocks from now on, and forget those that are no longer sampled."""
        hashes = sorted(self._places)
        self._threshold = hashes[int(len(hashes) * _SHRINK_TO)]
        for block in hashes:
            if block >= self._threshold:
                del self._places[block], self._weights[block]
        self._renumber()

    def _renumber(self) -> None:
        """Give the tracked blocks the lowest places in their order, because places run out."""
        order = sorted(self._places, key=self._places.__getitem__)
        self._places = {block: place for place, block in enumerate(order)}
        self._tree.fill([self._weights[block] for block in order])
        self._clock = len(order)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole else 0.0
