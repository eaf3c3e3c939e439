"""Prompt → chain of block hashes: equal chains up to a block mean equal prompts up to that block.

Blocks grow along the prompt: a short system prompt is told apart in small steps, and a long context does not cost a
hash for every few words. Boundaries depend on the position alone, so prompts that share a prefix share its blocks.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.model import BlockHash, InferenceRequest

BYTES_PER_TOKEN = 4
"""Rule of thumb for text; where the engine counts otherwise the learnt rates absorb it (a constant bias)."""


_LONGEST_KEPT = 200


class BlockSizes(msgspec.Struct, frozen=True):
    """How block sizes grow along a prompt, in bytes.

    Attributes:
        small: size of blocks up to `small_until`.
        small_until: a multiple of `small`.
        middle: size of blocks up to `middle_until`.
        middle_until: `small_until` plus a multiple of `middle`.
        large: size of all blocks after that.
    """

    small: int = 256
    small_until: int = 8 * 1024
    middle: int = 1024
    middle_until: int = 64 * 1024
    large: int = 4096


class PromptHasher:
    """Cuts prompts into blocks and chains their hashes with xxh3_64, each seeded with the one before."""

    def __init__(self, sizes: BlockSizes | None = None) -> None:
        self.sizes = sizes or BlockSizes()
        sizes = self.sizes
        starts = [
            *range(0, sizes.small_until, sizes.small),
            *range(sizes.small_until, sizes.middle_until, sizes.middle),
        ]
        self._ends: list[int] = [*starts[1:], sizes.middle_until]
        self._cuts: list[slice] = [slice(start, end) for start, end in zip(starts, self._ends, strict=True)]
        self._tokens: list[int] = [(cut.stop - cut.start) // BYTES_PER_TOKEN for cut in self._cuts]

    def chain(self, request: InferenceRequest, model: str | None = None) -> list[BlockHash]:
        """Return the hashes of the whole blocks of the request's prompt; a rest shorter than a block is left out.

        Args:
            request: its prompt and namespace are hashed.
            model: the model in whose cache the prompt would lie, where the request does not say.
        """
        prompt = request.prompt
        model = model or request.model or ""
        # Names come from strangers: only short ones are worth keeping.
        known = len(model) <= _LONGEST_KEPT and not request.namespace
        seed = _model_seed(model) if known else _seed((model, *request.namespace))
        digest = xxh3_64_intdigest
        hashes: list[BlockHash] = []
        for cut in self._cuts[: bisect_right(self._ends, len(prompt))]:
            seed = digest(prompt[cut], seed)
            hashes.append(seed)
        large = self.sizes.large
        for end in range(self.sizes.middle_until + large, len(prompt) + 1, large):
            seed = digest(prompt[end - large : end], seed)
            hashes.append(seed)
        return hashes

    def end(self, blocks: int) -> int:
        """Return how many bytes of a prompt the first `blocks` blocks cover."""
        if blocks <= 0:
            return 0
        known = len(self._ends)
        if blocks <= known:
            return self._ends[blocks - 1]
        return self.sizes.middle_until + (blocks - known) * self.sizes.large

    def tokens(self, block: int) -> int:
        """Return the estimated tokens of the block with that position, counted from 0."""
        known = self._tokens
        return known[block] if block < len(known) else self.sizes.large // BYTES_PER_TOKEN


@functools.lru_cache(maxsize=1024)
def _model_seed(model: str) -> BlockHash:
    return _seed((model,))


def _seed(parts: Sequence[str]) -> BlockHash:
    """Hash the namespace; lengths in front keep ("a", "bc") and ("ab", "c") apart."""
    framed = b"".join(
        len(data).to_bytes(4, "little") + data for data in (part.encode("utf-8", "surrogatepass") for part in parts)
    )
    seed: BlockHash = xxh3_64_intdigest(framed)
    return seed
