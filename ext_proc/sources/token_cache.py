"""Keeps the tokens of texts that were seen before, the last used ones, within a bound on tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Kept = TypeVar("Kept")

_OVERHEAD: Final = 32
"""Tokens' worth of memory that an entry takes beside its tokens."""


class TokenCache(Generic[Kept]):
    """Entries by key, forgotten in the order of their last use; safe for several threads.

    Args:
        most_tokens: bound on the tokens of all entries together, each counted with some for its own keeping.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._entries: OrderedDict[Hashable, tuple[Kept, int]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """What the entries take, in tokens."""
        return self._tokens

    @property
    def fill(self) -> float:
        """The share of its bound that it takes, 0 to 1."""
        return self._tokens / self._most

    def get(self, key: Hashable) -> Kept | None:
        """Return what is kept under a key; None if nothing is."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, kept: Kept, tokens: int) -> None:
        """Keep something that takes so many tokens; what is larger than all the room is not kept."""
        weight = tokens + _OVERHEAD
        with self._lock:
            old = self._entries.pop(key, None)
            self._tokens -= old[1] if old else 0
            if weight > self._most:
                return
            self._entries[key] = kept, weight
            self._tokens += weight
            while self._tokens > self._most:
                self._tokens -= self._entries.popitem(last=False)[1][1]
