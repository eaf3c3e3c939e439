"""Which endpoint holds which block, as the engines themselves report it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ext_proc.core.model import BlockHash
from ext_proc.core.prefix_index import ObservedIndex, held_depth
from ext_proc.core.token_chain import TokenChain


class ResidentIndex:
    """Blocks by endpoint slot, with a count of their physical copies; a slot is known once something is reported."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[BlockHash, int]] = {}
        self._block_tokens: dict[int, int] = {}

    def __contains__(self, slot: int) -> bool:
        """Tell whether an engine reports what it holds."""
        return slot in self._slots

    def add(self, slot: int, block_tokens: int | None = None) -> None:
        """Begin to believe an engine's reports; it holds nothing yet. Blocks that are tokens have a size."""
        self._slots.setdefault(slot, {})
        if block_tokens is not None:
            self._block_tokens[slot] = block_tokens

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self._slots.pop(slot, None)
        self._block_tokens.pop(slot, None)

    def block_tokens(self, slot: int) -> int | None:
        """Return the tokens of a block of an engine; None while it reports none or is not believed."""
        return self._block_tokens.get(slot)

    def tokens_held(self, chain: TokenChain, slots: Sequence[int]) -> list[int | None]:
        """Return how many leading tokens of a prompt each slot holds.

        None where the engine does not report, is not believed at the moment, or has blocks of another size.
        """
        sizes, hashes = self._block_tokens, chain.hashes
        return [
            (self.depth(slot, hashes) * chain.block_tokens if hashes else 0)
            if sizes.get(slot) == chain.block_tokens
            else None
            for slot in slots
        ]

    def stored(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Note one more copy of each block."""
        held = self._slots.get(slot)
        if held is None:
            return
        for block in blocks:
            held[block] = held.get(block, 0) + 1

    def removed(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Note one copy less of each block; a block that is not known is no error: its event may have been lost."""
        held = self._slots.get(slot)
        if held is None:
            return
        for block in blocks:
            copies = held.get(block, 0)
            if copies > 1:
                held[block] = copies - 1
            else:
                held.pop(block, None)

    def cleared(self, slot: int) -> None:
        """Note that an engine holds nothing any more."""
        if slot in self._slots:
            self._slots[slot] = {}

    def depth(self, slot: int, chain: Sequence[BlockHash], guess: int = 1) -> int:
        """Return how many leading blocks of a chain a slot holds; a right guess makes it quick."""
        held = self._slots.get(slot)
        if not held or chain[0] not in held:
            return 0
        return held_depth(held, 0, chain, max(guess, 1))

    def blocks(self, slot: int) -> int:
        """Return how many different blocks a slot holds."""
        return len(self._slots.get(slot, ()))


class MixedIndex:
    """Reports where there are any, our own history elsewhere."""

    def __init__(self, observed: ObservedIndex, resident: ResidentIndex) -> None:
        self._observed = observed
        self._resident = resident

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks of a chain, of at least one block, each slot holds."""
        depths = self._observed.depths(chain, slots)
        resident = self._resident
        guess = 1
        for place, slot in enumerate(slots):
            if slot in resident:
                depths[place] = depth = resident.depth(slot, chain, guess)
                guess = depth or guess
        return depths

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:
        """Note what a slot will hold, for the time when its reports fail."""
        return self._observed.learn(slot, chain, None if slot in self._resident else depth)

    def forget(self, slot: int, blocks: Sequence[BlockHash], stamp: int) -> None:
        """Take back what was learnt."""
        self._observed.forget(slot, blocks, stamp)

    def clear(self, slot: int) -> None:
        """Forget our own history of a slot; what it holds now its reports tell."""
        self._observed.clear(slot)

    def correct(self, slot: int, predicted: float, actual: float, length: float) -> None:
        """Correct our own history, if that was what predicted."""
        if slot not in self._resident:
            self._observed.correct(slot, predicted, actual, length)

    def used(self, slot: int, block: BlockHash) -> int:
        """Return the stamp of a block's last use in our own history; 0 if it is not known."""
        return self._observed.used(slot, block)

    def missed(self, slot: int, used: int, stamp: int) -> None:
        """Correct our own history, if that was what predicted."""
        if slot not in self._resident:
            self._observed.missed(slot, used, stamp)
