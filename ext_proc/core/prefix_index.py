"""Which endpoint holds which prefix, as learnt from our own decisions.

Every block knows the endpoints that hold it as bits of one integer, and every endpoint keeps its blocks in order of
use. A prompt is always touched as a whole, its first block last, so a block is never older than those that follow it
and eviction takes the ends of old prompts first, as engines do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import compress

from ext_proc.core.model import BlockHash

_BIT_OF_DIGIT = bytes(digit & 1 for digit in range(256))


class _Holdings:
    """The blocks of one endpoint, oldest first, with their tokens."""

    __slots__ = ("blocks", "capacity", "tokens")

    def __init__(self, capacity: int) -> None:
        self.blocks: OrderedDict[BlockHash, int] = OrderedDict()
        self.tokens = 0
        self.capacity = capacity


class ObservedIndex:
    """Prefixes by endpoint slot, bounded per endpoint in tokens and over all in blocks.

    Args:
        block_tokens: tokens of the block at a position, as the hasher cuts them.
        max_blocks: bound over all endpoints; none keeps more than an equal share while others need the room.
        default_capacity: tokens of an endpoint whose KV capacity is unknown.
    """

    def __init__(
        self, block_tokens: Callable[[int], int], *, max_blocks: int = 1_000_000, default_capacity: int = 400_000
    ) -> None:
        self._block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._default_capacity = default_capacity
        self._holders: dict[BlockHash, int] = {}
        self._slots: dict[int, _Holdings] = {}
        self._total = 0

    def add(self, slot: int, capacity: int | None = None) -> None:
        """Begin to remember for a slot; `capacity` in tokens. A slot that is known keeps what it holds."""
        known = self._slots.setdefault(slot, _Holdings(0))
        known.capacity = capacity or self._default_capacity
        self._shrink(slot, known)

    def remove(self, slot: int) -> None:
        """Forget everything that a slot holds."""
        held = self._slots.pop(slot, None)
        if held is None:
            return
        self._total -= len(held.blocks)
        for block in held.blocks:
            self._drop(block, 1 << slot)

    def match(self, chain: Sequence[BlockHash], measure: Callable[[int], int] = int) -> dict[int, int]:
        """Return how much of a chain each slot holds without a gap; slots that hold nothing are left out.

        Args:
            chain: hash chain of a prompt.
            measure: turns a number of leading blocks into what is returned, such as tokens.
        """
        depths: dict[int, int] = {}
        holders = self._holders.get
        mask = holders(chain[0], 0) if chain else 0
        depth = 0
        # Block by block, not by bisection: forgetting may leave a slot later blocks without the earlier ones.
        for block in chain:
            further = holders(block, 0) & mask
            if further != mask:
                depths.update(dict.fromkeys(_slots_of(mask ^ further), measure(depth)))
                mask = further
                if not mask:
                    break
            depth += 1
        if mask:
            depths.update(dict.fromkeys(_slots_of(mask), measure(depth)))
        return depths

    def learn(self, slot: int, chain: Sequence[BlockHash]) -> int:
        """Note that a slot will hold the whole chain; return how many leading blocks it held before."""
        held = self._slots.get(slot)
        if held is None:
            return 0
        blocks, holders, bit = held.blocks, self._holders, 1 << slot
        before = len(blocks)
        fresh = position = len(chain)
        for block in reversed(chain):
            position -= 1
            if block in blocks:
                blocks.move_to_end(block)
                continue
            fresh = position
            tokens = self._block_tokens(position)
            blocks[block] = tokens
            held.tokens += tokens
            holders[block] = holders.get(block, 0) | bit
        self._total += len(blocks) - before
        self._shrink(slot, held)
        return fresh

    def forget(self, slot: int, chain: Sequence[BlockHash]) -> None:
        """Take blocks of a chain from a slot that turned out not to hold them."""
        held = self._slots.get(slot)
        if held is None:
            return
        for block in chain:
            tokens = held.blocks.pop(block, None)
            if tokens is not None:
                held.tokens -= tokens
                self._total -= 1
                self._drop(block, 1 << slot)

    def blocks(self, slot: int) -> int:
        """Return how many blocks a slot holds."""
        held = self._slots.get(slot)
        return len(held.blocks) if held else 0

    def __len__(self) -> int:
        """Return the number of different blocks."""
        return len(self._holders)

    def _shrink(self, slot: int, held: _Holdings) -> None:
        while held.tokens > held.capacity:
            self._evict(slot, held)
        while self._total > self._max_blocks:
            # Whoever holds the most is over its share; the one that is learning goes first, it needs no search.
            if len(held.blocks) <= self._max_blocks // len(self._slots):
                slot, held = max(self._slots.items(), key=lambda item: len(item[1].blocks))
            self._evict(slot, held)

    def _evict(self, slot: int, held: _Holdings) -> None:
        block, tokens = held.blocks.popitem(last=False)
        held.tokens -= tokens
        self._total -= 1
        self._drop(block, 1 << slot)

    def _drop(self, block: BlockHash, bit: int) -> None:
        left = self._holders.get(block, 0) & ~bit
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)


def _slots_of(mask: int) -> compress[int]:
    """Return the positions of the bits that are set, without a step of Python for each of them."""
    digits = bin(mask)[:1:-1].encode()
    return compress(range(len(digits)), digits.translate(_BIT_OF_DIGIT))
