"""Prefixes that many prompts begin with, counted in bounded memory.

Each block of a chain is a place in the tree of all prompts. Its count is exact until more places are known than are
kept; then the rarest go, and a count may be too low by as much as the report says (lossy counting, Manku and Motwani,
VLDB 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from ext_proc.analyze.segments import readable
from ext_proc.core.hashing import BYTES_PER_TOKEN
from ext_proc.core.model import BlockHash
from ext_proc.ops.text import printable

KEPT = 200_000
_SHOWN = 50
_ROOT: Final = -1
"""Parent of first blocks; no hash is negative."""

_LEAVING = 0.1
"""A prefix ends where at least so large a share of its prompts go on otherwise than most do."""


class Family(msgspec.Struct, frozen=True):
    """Prompts that begin alike.

    Attributes:
        prefix_tokens: Tokens of what they share.
        requests: How many prompts begin so.
        request_share: The same as a share of all requests.
        repeated_share: Share of all prompt tokens that repeat this prefix, beyond the next shorter one.
        prefix: Name of the prefix, a hash; equal in every run with equal block sizes.
        excerpt: Beginning and end of the prefix, only where prompts may be shown.
    """

    prefix_tokens: int
    requests: int
    request_share: float
    repeated_share: float
    prefix: str
    excerpt: str = ""


class _Place(msgspec.Struct, gc=False):
    """A block in the tree of prompts."""

    count: int
    missed: int
    parent: BlockHash
    tokens: int
    text: str


class FamilyCounter:
    """Counts prefixes.

    Args:
        kept: places kept at once.
        show: whether the texts of prefixes may be kept and shown.
    """

    def __init__(self, kept: int = KEPT, *, show: bool = False) -> None:
        self.requests = 0
        self.missed = 0
        self._kept = kept
        self._show = show
        self._places: dict[BlockHash, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, chain: Sequence[BlockHash], sizes: Sequence[int], prompt: bytes = b"") -> None:
        """Count a prompt."""
        self.requests += 1
        places, missed, parent = self._places, self.missed, _ROOT
        for block, tokens in zip(chain, accumulate(sizes), strict=True):
            place = places.get(block)
            if place is None:
                text = _ends_of(prompt[: tokens * BYTES_PER_TOKEN]) if self._show else ""
                places[block] = _Place(1, missed, parent, tokens, text)
            else:
                place.count += 1
            parent = block
        while len(places) > self._kept:
            places = self._without_rarest()

    def families(self, most: int, prompt_tokens: int) -> list[Family]:
        """Return the prefixes whose repetition weighs most.

        Args:
            most: how many at most.
            prompt_tokens: tokens of all prompts.
        """
        ends = self._ends()
        weighed = sorted(((self._repeated(block, ends), block) for block in ends), reverse=True)
        return [self._family(block, repeated / max(prompt_tokens, 1)) for repeated, block in weighed[:most] if repeated]

    def _without_rarest(self) -> dict[BlockHash, _Place]:
        # A block never outlives its parent, whose count is at least as high.
        self.missed += 1
        limit = self.missed
        self._places = {block: place for block, place in self._places.items() if place.count + place.missed > limit}
        return self._places

    def _ends(self) -> set[BlockHash]:
        """Return the blocks behind which prompts go different ways, or no further."""
        heaviest: dict[BlockHash, int] = {}
        for place in self._places.values():
            heaviest[place.parent] = max(heaviest.get(place.parent, 0), place.count)
        return {
            block
            for block, place in self._places.items()
            if place.count - heaviest.get(block, 0) >= max(2, _LEAVING * place.count)
        }

    def _repeated(self, end: BlockHash, ends: set[BlockHash]) -> int:
        """Return the tokens that repeat a prefix beyond the next shorter one; its first prompt repeats nothing."""
        place = self._places[end]
        above = self._above(place)
        while above is not None and above[0] not in ends:
            above = self._above(above[1])
        shorter = above[1].tokens if above else 0
        return (place.count - 1) * (place.tokens - shorter)

    def _above(self, place: _Place) -> tuple[BlockHash, _Place] | None:
        """Return the block before a place; None at the root, and where a trace contradicts itself."""
        above = self._places.get(place.parent)
        return (place.parent, above) if above is not None and above.tokens < place.tokens else None

    def _family(self, end: BlockHash, repeated_share: float) -> Family:
        place = self._places[end]
        return Family(
            prefix_tokens=place.tokens,
            requests=place.count,
            request_share=place.count / self.requests,
            repeated_share=repeated_share,
            prefix=f"{end:016x}",
            excerpt=place.text,
        )


def _ends_of(prefix: bytes) -> str:
    """Show the beginning and the end of a prefix."""
    if len(prefix) <= 2 * _SHOWN:
        return printable(readable(prefix))
    return printable(f"{readable(prefix[:_SHOWN])} … {readable(prefix[-_SHOWN:])}")
