"""The engine's KV memory: blocks with chained hashes, reference counts and eviction of the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Protocol


class Journal(Protocol):
    """Hears what is in the cache, and publishes it at two ports: events, and answers to who missed some."""

    @property
    def ports(self) -> tuple[int, int]:
        """Both ports."""

    def learn(self, chain: Sequence[int], content: bytes, model: str, salt: str) -> None:
        """A sequence has that content, whose blocks may come to be stored."""

    def stored(self, blocks: Sequence[int]) -> None:
        """Blocks have become findable, parents before children."""

    def removed(self, block: int) -> None:
        """A block is findable no more."""

    def cleared(self) -> None:
        """None is findable any more."""


class Holding:
    """The blocks that one running sequence refers to.

    Attributes:
        hashes: hashes of the shared blocks it refers to, in prompt order.
        private: blocks without a shared hash: partial, not yet computed, or copies of a block that is cached already.
    """

    __slots__ = ("hashes", "private")

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.private = 0

    def __len__(self) -> int:
        return len(self.hashes) + self.private


class PrefixCache:
    """KV memory of `capacity` blocks, after vLLM's block pool.

    Blocks in use are never evicted. Freed blocks stay findable until their room is needed; of one freed sequence the
    tail goes first, so that prefixes survive longest. One difference from vLLM: a second copy of a block that is
    cached already is not findable, so it is gone as soon as its sequence is.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.journal: Journal | None = None
        self._known: dict[int, int] = {}  # references of each findable block, 0 for idle ones
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that running sequences refer to: what vLLM reports as KV cache usage."""
        return len(self._known) - len(self._idle) + self._private

    @property
    def cached(self) -> int:
        """Blocks that a prompt can hit, in use or idle."""
        return len(self._known)

    @property
    def available(self) -> int:
        """Blocks that are empty or can be had by eviction."""
        return self.capacity - self.used

    def match(self, chain: Sequence[int], limit: int) -> int:
        """Length in blocks of the longest cached prefix of `chain`, at most `limit`."""
        return len(list(takewhile(self._known.__contains__, islice(chain, limit))))

    def acquire(self, chain: Sequence[int], hits: int, blocks: int) -> Holding | None:
        """Refer to the first `hits` blocks of `chain` and reserve the rest of `blocks`; None if there is no room."""
        known, idle = self._known, self._idle
        shared = list(chain[:hits])
        revived = sum(known[block] == 0 for block in shared)
        if revived + blocks - hits > self.available:
            return None
        for block in shared:
            if not known[block]:
                del idle[block]
            known[block] += 1
        holding = Holding()
        holding.hashes = shared
        self.grow(holding, blocks - hits)
        return holding

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Reserve more blocks, evicting idle ones; False, and nothing done, if there is no room."""
        if blocks > self.available:
            return False
        self._private += blocks
        holding.private += blocks
        self._evict()
        return True

    def commit(self, holding: Holding, blocks: Sequence[int]) -> None:
        """Make computed blocks findable under their hashes."""
        known = self._known
        fresh = [block for block in blocks if block not in known]
        for block in fresh:
            known[block] = 1
            holding.hashes.append(block)
            holding.private -= 1
            self._private -= 1
        if self.journal is not None:
            self.journal.stored(fresh)

    def release(self, holding: Holding) -> None:
        """Stop referring to the blocks of `holding`; the shared ones become idle, tail first."""
        known, idle = self._known, self._idle
        for block in reversed(holding.hashes):
            known[block] -= 1
            if not known[block]:
                idle[block] = None
        self._private -= holding.private
        holding.hashes = []
        holding.private = 0

    def pass_through(self, chain: Sequence[int], blocks: int) -> bool:
        """Acquire, commit and release all of `chain` in one go; False, and nothing done, if there is no room."""
        if blocks > self.available:
            return False
        known, idle = self._known, self._idle
        if self.journal is not None:
            self.journal.stored([block for block in chain if block not in known])
        for block in reversed(chain):
            if block in idle:
                idle.move_to_end(block)
            elif block not in known:
                known[block] = 0
                idle[block] = None
        self._evict()
        return True

    def clear(self) -> None:
        """Forget all idle blocks."""
        idle, self._idle = self._idle, OrderedDict()
        for block in idle:
            del self._known[block]
        if self.journal is None:
            return
        if not self._known:
            self.journal.cleared()
            return
        for block in idle:
            self.journal.removed(block)

    def _evict(self) -> None:
        for _ in range(len(self._known) + self._private - self.capacity):
            block, _ = self._idle.popitem(last=False)
            del self._known[block]
            if self.journal is not None:
                self.journal.removed(block)
