"""Prompt → chain of block hashes: equal chains up to a block mean equal prompts up to that block.

Blocks grow along the prompt: a short system prompt is told apart in small steps, and a long context does not cost a
hash for every few words. Boundaries depend on the position alone, so prompts that share a prefix share its blocks.
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.model import BlockHash, InferenceRequest

BYTES_PER_TOKEN = 4
"""Rule of thumb for text; where the engine counts otherwise the learnt rates absorb it (a constant bias)."""


_LONGEST_KEPT = 200


class BlockSizes(msgspec.Struct, frozen=True):
    """How blocks grow along a prompt.

    Attributes:
        steps: (size, end) pairs in bytes: blocks have that size until that position, which whole blocks reach.
        last: size of all blocks after that.
    """

    steps: tuple[tuple[int, int], ...] = ((256, 1024), (512, 8192), (1024, 65_536))
    last: int = 4096


class Hasher(Protocol):
    """Turns a request's prompt into the chain that the index is asked for."""

    def chain(self, request: InferenceRequest, model: str | None = None) -> Sequence[BlockHash]:
        """Return the hashes of the whole blocks of the request's prompt."""

    def tokens(self, blocks: int) -> int:
        """Return the tokens of the first `blocks` blocks of a prompt."""


class PromptHasher:
    """Cuts prompts into blocks and chains their hashes with xxh3_64, each seeded with the one before."""

    def __init__(self, sizes: BlockSizes | None = None) -> None:
        self._sizes = sizes = sizes or BlockSizes()
        self._last = sizes.last
        self._ends: list[int] = []
        for size, end in sizes.steps:
            self._ends += range((self._ends or [0])[-1] + size, end + 1, size)
        self._splits = [_splitter(self._ends[:blocks]) for blocks in range(len(self._ends) + 1)]
        self._tokens: list[int] = [end // BYTES_PER_TOKEN for end in (0, *self._ends)]

    def __reduce__(self) -> tuple[type[PromptHasher], tuple[BlockSizes]]:
        """Copy by making another one: what cuts prompts is no plain data."""
        return PromptHasher, (self._sizes,)

    def chain(self, request: InferenceRequest, model: str | None = None) -> list[BlockHash]:
        """Return the hashes of the whole blocks of the request's prompt; a rest shorter than a block is left out.

        Args:
            request: its prompt and namespace are hashed.
            model: the model in whose cache the prompt would lie, where the request does not say.
        """
        prompt = request.prompt
        model = request.model or model or ""
        # Names come from strangers: only short ones are worth keeping.
        known = len(model) <= _LONGEST_KEPT and not request.namespace
        seed = _model_seed(model) if known else _seed((model, *request.namespace))
        digest = xxh3_64_intdigest
        length, last, known_end = len(prompt), self._last, self._ends[-1]
        split = self._splits[bisect_right(self._ends, length)]
        hashes = [seed := digest(block, seed) for block in split(prompt)]
        if length >= known_end + last:
            ends = range(known_end + last, length + 1, last)
            hashes += [seed := digest(prompt[end - last : end], seed) for end in ends]
        return hashes

    def end(self, blocks: int) -> int:
        """Return how many bytes of a prompt the first `blocks` blocks cover."""
        if blocks <= 0:
            return 0
        known = len(self._ends)
        if blocks <= known:
            return self._ends[blocks - 1]
        return self._ends[-1] + (blocks - known) * self._last

    def tokens(self, blocks: int) -> int:
        """Return the estimated tokens of the first `blocks` blocks of a prompt."""
        known = self._tokens
        return known[blocks] if blocks < len(known) else self.end(blocks) // BYTES_PER_TOKEN


def _splitter(ends: Sequence[int]) -> Callable[[bytes], tuple[bytes, ...]]:
    """Make what cuts the beginning of a prompt at these places, in half the time that slicing takes."""
    layout = "".join(f"{end - start}s" for start, end in pairwise((0, *ends)))
    split: Callable[[bytes], tuple[bytes, ...]] = struct.Struct(layout).unpack_from
    return split


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
