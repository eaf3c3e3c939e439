"""Block → the caches that hold it, as one bit each: a chain is looked up in all of them at once.

A cache is a row: a bit in the value of every block that it holds, in the table of the tier it holds it in. Emptying a
cache gives it another row and takes the old bits back in small pieces (`tidy`), however much it held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from ext_proc.core.kv_events import Tier
from ext_proc.core.model import BlockHash
from ext_proc.core.slots import Slots

_MOST_SHARED_MASKS = 4096

Runs: TypeAlias = dict[int, list[int]]
"""By row: how many leading blocks it holds in each tier; rows that hold none may be missing."""


class BlockTable:
    """Blocks by row and tier.

    Attributes:
        revision: another number after whatever changes which row is to be asked for.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._tables: tuple[dict[BlockHash, int], ...] = tuple({} for _ in Tier)
        self._rows = Slots()
        self._litter: list[tuple[int, Tier, Iterator[BlockHash]]] = []
        # Equal masks are one object: in most tables a handful of them stand for all blocks.
        self._masks: dict[int, int] = {}

    def open(self) -> int:
        """Return a row that holds nothing."""
        self.revision += 1
        return self._rows.take()

    def close(self, row: int, held: Sequence[tuple[Tier, Iterable[BlockHash]]]) -> None:
        """Give up a row that holds these blocks; `tidy` takes them back, and nobody may ask for the row any more."""
        self.revision += 1
        self._litter += ((row, tier, iter(blocks)) for tier, blocks in held)
        if not held:
            self._rows.release(row)

    def tidy(self, most: int) -> bool:
        """Take back at most so many blocks of rows that were given up; returns whether any are left."""
        while self._litter and most > 0:
            row, tier, blocks = self._litter[-1]
            taken = list(islice(blocks, most))
            self.drop(row, tier, taken)
            most -= len(taken)
            if most > 0:
                self._litter.pop()
                if all(other != row for other, *_ in self._litter):
                    self._rows.release(row)
        return bool(self._litter)

    def hold(self, row: int, tier: Tier, blocks: Iterable[BlockHash]) -> list[BlockHash]:
        """Note that a row holds blocks; return those that it did already."""
        table, shared, again = self._tables[tier], self._shared, []
        get, bit = table.get, shared(1 << row)
        for block in blocks:
            before = get(block)
            if before is None:
                table[block] = bit
            elif before & bit:
                again.append(block)
            else:
                table[block] = shared(before | bit)
        return again

    def drop(self, row: int, tier: Tier, blocks: Iterable[BlockHash]) -> None:
        """Note that a row does not hold blocks."""
        table, bit, shared = self._tables[tier], 1 << row, self._shared
        for block in blocks:
            left = table.get(block, 0) & ~bit
            if left:
                table[block] = shared(left)
            else:
                table.pop(block, None)

    @property
    def is_near(self) -> bool:
        """Whether all that is held is in the nearest tier."""
        return not any(self._tables[1:])

    def depths(self, chain: Iterable[BlockHash], rows: int) -> dict[int, int]:
        """Return how far each of some rows holds a chain without a gap in the nearest tier.

        Args:
            chain: hash chain of a prompt.
            rows: the rows, one bit each.
        """
        get, found = self._tables[0].get, dict[int, int]()
        alive, depth = rows, 0
        for block in chain:
            left = get(block, 0) & alive
            if left != alive:
                gone = alive ^ left
                if gone & (gone - 1) == 0:  # as a rule one at a time
                    found[gone.bit_length() - 1] = depth
                else:
                    found.update(dict.fromkeys(_bits(gone), depth))
                if not left:
                    return found
                alive = left
            depth += 1
        found.update(dict.fromkeys(_bits(alive), depth))
        return found

    def runs(self, chain: Sequence[BlockHash], rows: int) -> Runs:
        """Do the same where a block that the nearest tier has not may be in another, and tell the tiers apart."""
        found: Runs = {}
        alive, before = rows, [0] * len(self._tables)
        for depth, block in enumerate(chain):
            left, here = alive, []
            for table in self._tables:
                mask = table.get(block, 0) & left
                left ^= mask
                here.append(mask)
            if here != before:
                _count(found, before, here, depth)
                before = here
            alive ^= left
            if not alive:
                return found
        _count(found, before, [0] * len(self._tables), len(chain))
        return found

    def __len__(self) -> int:
        """Return the number of different blocks, each tier by itself."""
        return sum(map(len, self._tables))

    def _shared(self, mask: int) -> int:
        masks = self._masks
        if len(masks) > _MOST_SHARED_MASKS:
            masks.clear()
        return masks.setdefault(mask, mask)


def _count(found: Runs, before: Sequence[int], here: Sequence[int], depth: int) -> None:
    """Add up the length of what ends at a depth, and begin what begins there."""
    for tier, (was, now) in enumerate(zip(before, here, strict=True)):
        for row in _bits(was & ~now):
            found[row][tier] += depth
        for row in _bits(now & ~was):
            found.setdefault(row, [0] * len(here))[tier] -= depth


def _bits(mask: int) -> Iterator[int]:
    """Return which bits are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
