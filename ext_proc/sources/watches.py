"""Watches endpoints, each in tasks of its own, for as long as a source runs: in line with the registry at all times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence, ValuesView
from typing import Generic, Protocol, TypeVar

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.core.snapshot import Snapshot

NOTICE_S = 0.1
"""Time between two looks at the registry, at least: a change is followed at once, further ones together."""


class Watch(Protocol):
    """One endpoint under observation."""

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What observes it."""


Asked = TypeVar("Asked")
Watched = TypeVar("Watched", bound=Watch)


class Watches(Generic[Asked, Watched]):
    """The watches of a source.

    Args:
        registry: which endpoints there are.
        wanted: says of a snapshot what is to be watched and how, by generation.
        goes_on: tells whether a watch can go on as it is, given what is asked of it now; else it is begun anew.
        ended: hears of each watch whose endpoint went, or that is begun anew, before any other is begun.
    """

    def __init__(
        self,
        registry: Registry,
        wanted: Callable[[Snapshot], Mapping[int, Asked]],
        goes_on: Callable[[Watched, Asked], bool],
        ended: Callable[[Watched], None] = lambda _watch: None,
    ) -> None:
        self._registry = registry
        self._wanted = wanted
        self._goes_on = goes_on
        self._ended = ended
        self._changed = asyncio.Event()
        self._seen: Snapshot | None = None
        self._watches: dict[int, Watched] = {}

    def __len__(self) -> int:
        """Return how many endpoints are watched."""
        return len(self._watches)

    def values(self) -> ValuesView[Watched]:
        """Return all watches."""
        return self._watches.values()

    def of(self, endpoint: Endpoint) -> Watched | None:
        """Return the watch of an endpoint; None if it is not watched."""
        return self._watches.get(endpoint.generation)

    def reconsider(self) -> None:
        """Ask again what is wanted: by other settings it may be something else."""
        self._seen = None
        self._changed.set()

    async def run(self, begin: Callable[[Asked], Watched], tend: Callable[[], float | None] = lambda: None) -> None:
        """Follow the registry until cancelled, then end all watches.

        Args:
            begin: begins a watch.
            tend: called after each look; returns the seconds until the next one, None for the next change.
        """
        unsubscribe = self._registry.subscribe(self._changed.set)
        try:
            while True:
                self._changed.clear()
                self._follow(begin)
                pause = tend()
                await asyncio.sleep(NOTICE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if pause is None else pause - NOTICE_S):
                        await self._changed.wait()
        finally:
            unsubscribe()
            self._seen = None
            gone = [self._watches.pop(generation) for generation in list(self._watches)]
            tasks = [task for watch in gone for task in self._end(watch)]
            await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, begin: Callable[[Asked], Watched]) -> None:
        snapshot = self._registry.snapshot
        if snapshot is self._seen:
            return
        self._seen = snapshot
        wanted = self._wanted(snapshot)
        # All that go first: their slots may be in use again.
        for generation, watch in list(self._watches.items()):
            if generation not in wanted or not self._goes_on(watch, wanted[generation]):
                del self._watches[generation]
                self._end(watch)
        for generation, asked in wanted.items():
            if generation not in self._watches:
                self._watches[generation] = begin(asked)

    def _end(self, watch: Watched) -> Sequence[asyncio.Task[None]]:
        self._ended(watch)
        for task in watch.tasks:
            task.cancel()
        return watch.tasks
