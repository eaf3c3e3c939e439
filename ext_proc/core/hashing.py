"""Prompt → chain of block hashes: equal chains up to a block mean equal prompts up to that block.

Blocks grow along the prompt: a short system prompt is told apart in small steps, and a long context does not cost a
hash for every few words. Boundaries depend on the position alone, so prompts that share a prefix share its blocks.
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.model import BlockHash, InferenceRequest

BYTES_PER_TOKEN = 4
"""Rule of thumb for text; where the engine counts otherwise the learnt rates absorb it (a constant bias)."""


_LONGEST_KEPT = 200
_PIECE = 16
_TABLED = 1024
"""Blocks whose places are looked up, not computed."""


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
    """Cuts prompts into blocks and chains their hashes with xxh3_64, each seeded with the one before.

    What several prompts begin with, be it a system prompt or the turns of a conversation, is cut only once: the hashes
    of a piece of 16 blocks are kept by the hash of the whole piece, which is seeded in the same way. A prompt adds one
    piece at most, the first that was not known, so what is never repeated costs little.

    Args:
        sizes: how blocks grow along a prompt.
        kept: pieces in one of the two generations that are kept; in the older one are those not used for longest.
    """

    def __init__(self, sizes: BlockSizes | None = None, *, kept: int = 2048) -> None:
        self._sizes = sizes = sizes or BlockSizes()
        self._last = last = sizes.last
        ends = [0]
        for size, end in sizes.steps:
            ends += range(ends[-1] + size, end + 1, size)
        self._growing = len(ends) - 1
        ends += range(ends[-1] + last, ends[-1] + last * (_TABLED - self._growing) + 1, last)
        self._ends = ends[1:]
        self._tokens = [end // BYTES_PER_TOKEN for end in ends]
        self._pieces = list(pairwise(ends[::_PIECE]))
        self._cut = functools.lru_cache(_TABLED)(self._cutter)
        self._split = struct.Struct(f"{last}s").iter_unpack
        self._kept = kept
        self._young: dict[BlockHash, list[BlockHash]] = {}
        self._old: dict[BlockHash, list[BlockHash]] = {}

    def __reduce__(self) -> tuple[type[PromptHasher], tuple[BlockSizes]]:
        """Copy by making another one: what cuts prompts is no plain data."""
        return PromptHasher, (self._sizes,)

    @property
    def pieces(self) -> int:
        """How many pieces of prompts are kept."""
        return len(self._young) + len(self._old)

    def chain(self, request: InferenceRequest, model: str | None = None) -> list[BlockHash]:
        """Return the hashes of the whole blocks of the request's prompt; a rest shorter than a block is left out.

        Args:
            request: its prompt and namespace are hashed.
            model: the model in whose cache the prompt would lie, where the request does not say.
        """
        prompt, digest = request.prompt, xxh3_64_intdigest
        model = request.model or model or ""
        # Names come from strangers: only short ones are worth keeping.
        is_short = len(model) <= _LONGEST_KEPT and not request.namespace
        seed = _model_seed(model) if is_short else _seed((model, *request.namespace))
        blocks, growing = self._count(len(prompt)), self._growing
        if blocks < _PIECE:
            return [seed := digest(block, seed) for block in self._cut(0, blocks)(prompt)]
        known, unknown = self._recall(prompt, blocks // _PIECE, seed)
        first = len(known)
        if first == blocks:
            return known
        seed, hashes = known[-1] if known else seed, []
        if first < growing:
            cut = self._cut(first, min(growing, blocks))
            hashes = [seed := digest(block, seed) for block in cut(prompt, self.end(first))]
        if blocks > growing:
            alike = self._alike(prompt, max(first, growing))
            hashes += [seed := digest(block, seed) for (block,) in alike]
        if unknown is not None:
            self._keep(unknown, hashes[:_PIECE])
        return known + hashes if known else hashes

    def _count(self, size: int) -> int:
        """Return how many whole blocks a prompt of so many bytes has."""
        blocks = bisect_right(self._ends, size)
        return blocks if blocks < len(self._ends) else blocks + (size - self._ends[-1]) // self._last

    def _recall(self, prompt: bytes, pieces: int, seed: BlockHash) -> tuple[list[BlockHash], BlockHash | None]:
        """Return the hashes of a prompt's blocks as far as pieces are known, and that of the first piece that is not.

        Args:
            prompt: the prompt.
            pieces: how many it has.
            seed: what its chain begins with.
        """
        digest, view = xxh3_64_intdigest, memoryview(prompt)
        hashes: list[BlockHash] = []
        for start, end in self._pieces[:pieces]:
            piece = digest(view[start:end], seed)
            known = self._young.get(piece)
            if known is None:
                known = self._old.get(piece)
                if known is None:
                    return hashes, piece
                self._keep(piece, known)
            hashes += known
            seed = known[-1]
        return hashes, None

    def _keep(self, piece: BlockHash, hashes: list[BlockHash]) -> None:
        """Keep the hashes of a piece, for now."""
        if len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        self._young[piece] = hashes

    def _alike(self, prompt: bytes, first: int) -> Iterator[tuple[bytes]]:
        """Cut a prompt from a block on from which all have the same size."""
        start = self.end(first)
        end = len(prompt) - (len(prompt) - start) % self._last
        return self._split(memoryview(prompt)[start:end])

    def end(self, blocks: int) -> int:
        """Return how many bytes of a prompt the first `blocks` blocks cover."""
        if blocks <= 0:
            return 0
        tabled = len(self._ends)
        if blocks <= tabled:
            return self._ends[blocks - 1]
        return self._ends[-1] + (blocks - tabled) * self._last

    def tokens(self, blocks: int) -> int:
        """Return the estimated tokens of the first `blocks` blocks of a prompt."""
        tabled = self._tokens
        return tabled[blocks] if blocks < len(tabled) else self.end(blocks) // BYTES_PER_TOKEN

    def _cutter(self, first: int, last: int) -> Callable[..., tuple[bytes, ...]]:
        """Make what cuts a prompt into blocks as long as they grow, in half the time that slicing takes."""
        ends = (0, *self._ends[:last])[first:]
        layout = "".join(f"{end - start}s" for start, end in pairwise(ends))
        cut: Callable[..., tuple[bytes, ...]] = struct.Struct(layout).unpack_from
        return cut


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
