"""The reuse meter: how much of recent prompts stood in earlier ones, which an endless cache would save.

Whole blocks are counted, so it reads a little low. What an engine is believed to hold was seen before. Of the blocks
behind that only those are looked at whose hash falls into a sixteenth of its range: the same ones in every prompt.
What was not seen is summed up, each new block standing for sixteen like it, and the rest of all tokens is what
repeats. Summing the new keeps a hot prefix, which is new only once, from mattering by the luck of the sample
(Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ext_proc.core.model import BlockHash

ONE_IN = 16
"""How many blocks one sampled block stands for."""

_SAMPLED_BELOW = 2**64 // ONE_IN
_LONGEST_CHAIN = 4096
"""Blocks behind this one count as new; at the default sizes a prompt is then beyond 16 MB."""


class ReuseMeter:
    """Estimates the share of prompt tokens that were seen before in recent traffic.

    The standard error is one or two hundredths once some thousand requests have been seen.

    Args:
        tokens: tokens of the first so many blocks of a prompt, as the hasher tells it.
        remembered: sampled blocks in one of the two generations that are remembered.
        window: prompt tokens after which what was counted so far weighs half.
    """

    def __init__(
        self,
        tokens: Callable[[int], int],
        *,
        remembered: int = 16_384,
        window: int = 50_000_000,
    ) -> None:
        self._ends = [tokens(blocks) for blocks in range(_LONGEST_CHAIN + 1)]
        self._remembered = remembered
        self._window = window
        self._young: set[BlockHash] = set()
        self._old: set[BlockHash] = set()
        self._total = 0.0
        self._new = 0.0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, chain: Sequence[BlockHash], tokens: int, held: int = 0) -> None:
        """Count a prompt.

        Args:
            chain: its block hashes.
            tokens: tokens of the whole prompt; what lies behind the last whole block counts as new.
            held: leading blocks of it that the engine which holds most is believed to hold.
        """
        blocks = len(chain)
        if held < blocks:
            sampled = [block for block in chain[held:] if block < _SAMPLED_BELOW]
            if sampled:
                self._look(chain, sampled, held)
        rest = tokens - self._ends[min(_LONGEST_CHAIN, blocks)]
        if rest > 0:
            self._new += rest
        self._total += tokens
        if self._total > self._window:
            self._total /= 2
            self._new /= 2

    def ratio(self) -> float | None:
        """Return the share of tokens seen before, in [0, 1]; None before any were counted."""
        if not self._total:
            return None
        return min(max(1.0 - self._new / self._total, 0.0), 1.0)

    def _look(self, chain: Sequence[BlockHash], sampled: list[BlockHash], place: int) -> None:
        """Sum up the new ones among sampled blocks, which stand in the chain from `place` on in this order."""
        ends = self._ends
        for block in sampled:
            place = chain.index(block, place)
            if self._is_new(block) and place < _LONGEST_CHAIN:
                self._new += (ends[place + 1] - ends[place]) * ONE_IN

    def _is_new(self, block: BlockHash) -> bool:
        """Tell whether a block is new, and remember it among the young."""
        if block in self._young:
            return False
        if len(self._young) >= self._remembered:
            self._old, self._young = self._young, set()
        self._young.add(block)
        return block not in self._old
