"""The numbered messages of one publisher of KV events: what is missing, what has begun anew, what may be believed.

Numbers begin at 0 with the engine's process. A number that was passed already means another process, whose cache is
empty; one that leaves others out means that messages were lost, and unless they can be had again, whatever was held may
have been given up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ext_proc.core.block_table import BlockTable
from ext_proc.core.engine_cache import EngineCache
from ext_proc.core.kv_events import Batch
from ext_proc.core.kv_state import Disbelief

MOST_RANKS = 64
"""Caches of one publisher; more are no ranks but nonsense."""


class KvFeed:
    """One publisher, with a cache for each data-parallel rank that it speaks of.

    Args:
        table: where the caches are noted.
        rank: the rank of batches that do not say.

    Attributes:
        caches: by rank.
        is_heard: whether anything has been received.
        is_waiting: whether messages are missing that have been asked for; nothing is believed meanwhile.
        losses: times that messages were lost, so that what was held before is not believed.
        is_silent: whether it was silent for so long that nothing is believed until something comes.
    """

    def __init__(self, table: BlockTable, rank: int = 0) -> None:
        self.caches: dict[int, EngineCache] = {}
        self.is_heard = False
        self.is_waiting = False
        self.is_silent = False
        self.losses = 0
        self._table = table
        self._rank = rank
        self._next = 0
        self._live = -1
        self._starts_complete = True
        self._may_be_new_from = math.inf
        self._is_closed = False

    def reconnected(self, *, can_ask: bool) -> None:
        """Note that the connection ended: what comes after that may be of another process, which is further on already.

        Args:
            can_ask: whether all can be had again; then not even a number that follows is taken for the same one's.
        """
        self._may_be_new_from = self._next + (not can_ask)
        self._live = self._next - 1  # what an answer brought cannot come live any more

    def asking(self) -> None:
        """Note that what was published before is asked for; nothing is believed until there is an answer or none."""
        self._wait(is_waiting=True)

    def asked(self, *, is_answered: bool) -> None:
        """Note that an answer is complete, or that none comes.

        With a complete one an engine is known even if it has stored nothing yet, and it is the process that was asked
        whose messages follow.
        """
        if is_answered:
            self.is_heard = self.is_heard or self._starts_complete or self._next > 0
            self.is_silent = not self.is_heard and self.is_silent
            self._may_be_new_from = math.inf
        self._wait(is_waiting=False)

    def mistrust(self) -> None:
        """Believe nothing until something comes: the engine must have told of changes, and has not."""
        self.is_silent = True
        if self.is_heard:
            self.is_heard = False
            self._table.revision += 1

    @property
    def disbelief(self) -> Disbelief | None:
        """Why nothing is believed; None if what was reported is."""
        if self.is_waiting:
            return Disbelief.MISSING_EVENTS
        if self.is_silent:
            return Disbelief.SILENT
        return None if self.is_heard else Disbelief.NOTHING_HEARD

    @property
    def is_complete(self) -> bool:
        """Whether nothing can be held that was not reported."""
        return self._starts_complete and all(cache.is_complete for cache in self.caches.values())

    def restart(self) -> None:
        """Note that another process publishes, whose cache began empty and whose numbers begin at 0."""
        self._drop()
        self.is_heard = False
        self._next = 0
        self._live = -1
        self._starts_complete = True
        self._may_be_new_from = math.inf
        self._table.revision += 1

    def is_new(self, number: int) -> bool:
        """Tell whether a live number must be taken for one of a new process.

        What an answer brought is newer than the last live message, so that comes live once more.
        """
        return number <= self._live or number >= self._may_be_new_from

    def missing(self, number: int) -> int | None:
        """Return the first message that should be asked for before a live one is received; None if nothing is missing.

        Nothing is believed until `receive` is called with it.
        """
        if self.is_new(number):
            self._begin_anew()
        if number <= self._next:
            return None
        self._wait(is_waiting=True)
        return self._next

    def receive(self, number: int, batch: Batch) -> list[str]:
        """Let a live message have its effect; what is still missing before it is lost.

        Returns:
            Why some of its events had none, metric labels.
        """
        if self.is_new(number):
            self._begin_anew()
        self._wait(is_waiting=False)
        self._may_be_new_from = math.inf  # what follows is of the same process as this
        self._live = number
        return self._take(number, batch)

    def replayed(self, number: int, batch: Batch) -> list[str]:
        """Let a message that was asked for have its effect, as `receive`."""
        return self._take(number, batch)

    def lost(self, number: int) -> None:
        """Note that a live message cannot be read; if its number makes no sense either, nothing is noted."""
        if number == self._next:
            self._live = number
            self._next = number + 1
            self._doubt()

    def cleared(self) -> None:
        """Note that the engine's caches are empty, by other news than its events; their numbers go on."""
        for cache in self.caches.values():
            cache.clear()

    def close(self) -> None:
        """Give up all that is held, and hear of nothing more."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        for cache in self.caches.values():
            cache.close()
        self.caches.clear()

    def _wait(self, *, is_waiting: bool) -> None:
        if is_waiting != self.is_waiting:
            self.is_waiting = is_waiting
            self._table.revision += 1

    def _begin_anew(self) -> None:
        self.restart()
        self._wait(is_waiting=False)

    def _take(self, number: int, batch: Batch) -> list[str]:
        if number < self._next or self._is_closed:
            return []
        if number > self._next:
            self._doubt()
        if not self.is_heard:
            self.is_heard = True
            self.is_silent = False
            self._table.revision += 1
        self._next = number + 1
        rank = self._rank if batch.rank is None else batch.rank
        cache = self.caches.get(rank)
        if cache is None:
            if len(self.caches) >= MOST_RANKS:
                return ["too_many_ranks"]
            cache = self.caches[rank] = EngineCache(self._table)
            cache.is_complete = self._starts_complete
        problems = [problem for problem in map(cache.apply, batch.events) if problem is not None]
        for group, kind in batch.unread:
            cache.overlook(group, kind)
        return problems

    def _doubt(self) -> None:
        self.losses += 1
        self._starts_complete = False
        for cache in self.caches.values():
            cache.doubt()


def believed(feeds: Iterable[KvFeed]) -> list[EngineCache] | None:
    """Return the caches of an engine; None while it has not reported, or reports of it are missing."""
    found: list[EngineCache] = []
    is_heard = False
    for feed in feeds:
        if feed.is_waiting:
            return None
        is_heard = is_heard or feed.is_heard
        found += feed.caches.values()
    return found if is_heard else None
