"""The KV cache of a simulated engine: blocks of 16 tokens, their prefixes, and which go first.

Modelled on the block pool of vLLM V1: only full blocks are found again, a block with users is never given up, those
without wait in one queue in which the least recently used is first and, of one sequence, the tail. Blocks that stand in
a row, are used together and are called by consecutive names are kept as one piece, so the work is per row, not per
block, and still exact to the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

BLOCK_TOKENS = 16
"""vLLM's default on GPUs."""


class Run(NamedTuple):
    """Consecutive blocks of a prompt: `first` names the first of them, the others follow by number."""

    first: int
    blocks: int


class Change(NamedTuple):
    """Blocks from `first` to before `end` got a copy more in the cache, or one less."""

    first: int
    end: int
    stored: bool


class Piece:
    """Copies of the blocks from `first + low` to before `first + high`, `users` of which hold them."""

    __slots__ = ("first", "high", "low", "users")

    def __init__(self, first: int, low: int) -> None:
        self.first = first
        self.low = self.high = low
        self.users = 1


class Holding:
    """What one sequence holds: pieces in the order of its tokens, and blocks that have no name yet."""

    __slots__ = ("hashed", "own", "pieces", "private")

    def __init__(self, pieces: Sequence[Piece], hashed: int) -> None:
        self.pieces = list(pieces)
        self.hashed = hashed
        self.private = 0
        self.own: Piece | None = None


class BlockCache:
    """Blocks in use, blocks that are kept for whoever needs them again, and free ones.

    Args:
        capacity: blocks in all.

    Attributes:
        capacity: as above.
        changes: what was stored and removed since somebody last emptied the list.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.changes: list[Change] = []
        self._blank = capacity
        self._kept = 0
        self._queue: OrderedDict[Piece, None] = OrderedDict()
        self._pieces: dict[int, list[Piece]] = {}

    @property
    def available(self) -> int:
        """Blocks that nobody uses."""
        return self._blank + self._kept

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.capacity - self.available

    def match(self, runs: Iterable[Run], most: int) -> tuple[int, list[Piece]]:
        """Return how many leading blocks are there, of `most` at most, and the pieces that they lie in."""
        hit = 0
        pieces: list[Piece] = []
        for first, length in runs:
            at = 0
            while at < length and hit + at < most:
                piece = self._at(first, at)
                if piece is None:
                    return hit + at, pieces
                pieces.append(piece)
                at = piece.high
            hit += min(at, length)
            if hit >= most:
                return most, pieces
        return hit, pieces

    def idle(self, pieces: Iterable[Piece]) -> int:
        """Return how many blocks of pieces count as available and would not any more once they are held."""
        return sum(piece.high - piece.low for piece in pieces if not piece.users)

    def hold(self, pieces: Sequence[Piece], blocks: int) -> Holding:
        """Begin a sequence that finds its first `blocks` blocks in these pieces."""
        for piece in pieces:
            if not piece.users:
                del self._queue[piece]
                self._kept -= piece.high - piece.low
            piece.users += 1
        return Holding(pieces, blocks)

    def take(self, blocks: int) -> bool:
        """Take blocks that nobody uses, giving up what was used least recently; False if there are not so many.

        Whoever takes them counts them as `private`.
        """
        if blocks > self._blank + self._kept:
            return False
        missing = blocks - self._blank
        if missing <= 0:
            self._blank -= blocks
            return True
        self._blank = 0
        self._kept -= missing
        while missing > 0:
            piece = next(iter(self._queue))
            gone = min(piece.high - piece.low, missing)
            missing -= gone
            piece.high -= gone
            self.changes.append(Change(piece.first + piece.high, piece.first + piece.high + gone, stored=False))
            if piece.high == piece.low:
                del self._queue[piece]
                self._forget(piece)
        return True

    def fill(self, holding: Holding, runs: Iterable[Run], blocks: int) -> None:
        """Name the private blocks of a sequence up to its first `blocks` blocks, which are full now."""
        start = 0
        for first, length in runs:
            if start >= blocks:
                break
            low, high = max(holding.hashed - start, 0), min(blocks - start, length)
            if low < high:
                self._extend(holding, first, low, high)
            start += length

    def free(self, holding: Holding) -> None:
        """End a sequence: its tail is what will be given up first of it."""
        self._blank += holding.private
        for piece in reversed(holding.pieces):
            piece.users -= 1
            if not piece.users:
                self._queue[piece] = None
                self._kept += piece.high - piece.low

    def _extend(self, holding: Holding, first: int, low: int, high: int) -> None:
        piece = holding.own
        if piece is None or piece.first != first or piece.high != low:
            piece = holding.own = Piece(first, low)
            holding.pieces.append(piece)
            self._pieces.setdefault(first, []).append(piece)
        piece.high = high
        holding.private -= high - low
        holding.hashed += high - low
        self.changes.append(Change(first + low, first + high, stored=True))

    def _at(self, first: int, at: int) -> Piece | None:
        """Return the piece that holds a block of a run and reaches farthest."""
        best = None
        for piece in self._pieces.get(first, ()):
            if piece.low <= at < piece.high and (best is None or piece.high > best.high):
                best = piece
        return best

    def _forget(self, piece: Piece) -> None:
        others = self._pieces[piece.first]
        others.remove(piece)
        if not others:
            del self._pieces[piece.first]
