"""What requests in flight at one endpoint have in common: its engine holds a block once, whoever uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ext_proc.core.model import BlockHash

_MEMORY = 0.98


class Sharing:
    """Counts by block how many requests in flight begin with it.

    Blocks are kept while requests with them are in flight, so there are never more than those have together.

    Args:
        measure: tokens of so many leading blocks of a prompt, as the hasher estimates them.
        scale: tokens for each estimated one, to start with.
    """

    __slots__ = ("_again", "_measure", "_scale", "_users")

    def __init__(self, measure: Callable[[int], int], scale: float) -> None:
        self._measure = measure
        self._scale = scale
        self._again = 0
        self._users: dict[BlockHash, int] = {}

    @property
    def tokens(self) -> int:
        """Prompt tokens that a sum over the requests counts again, though another one has them."""
        return int(self._again * self._scale)

    def begin(self, chain: Sequence[BlockHash], scale: float) -> None:
        """Count a request by the chain of its prompt, which has so many tokens for each estimated one.

        That counts for what it shares alone: in a short prompt there is more of the chat template than of text.
        """
        users, depth = self._users, 0
        for block in chain:
            count = users.get(block)
            if count:
                users[block] = count + 1
                depth += 1
            else:
                users[block] = 1
        if depth:
            self._scale = _MEMORY * self._scale + (1 - _MEMORY) * scale
            self._again += self._measure(depth)

    def end(self, chain: Sequence[BlockHash]) -> None:
        """Count one that is no longer in flight."""
        users, depth = self._users, 0
        for block in chain:
            count = users.get(block, 0)
            if count > 1:
                users[block] = count - 1
                depth += 1
            elif count:
                del users[block]
        self._again -= self._measure(depth)

    def common(self, chain: Sequence[BlockHash]) -> int:
        """Return how many tokens of a prompt are in flight already."""
        return int(self._measure(sum(map(self._users.__contains__, chain))) * self._scale)

    def __len__(self) -> int:
        """Return the number of blocks counted."""
        return len(self._users)
