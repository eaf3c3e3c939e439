"""Listens to the KV events of engines over ZMQ and tells the resident index; asks again for what was lost.

Engines may flood. So queues are short, one reader works at a time and for milliseconds only, and after that the rest of
the process has as long for itself. What does not fit in the queues is dropped by ZMQ, shows as a gap in the numbers and
is asked for again, or ends the belief in what was held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import zmq.asyncio

from ext_proc.config import Config, PoolConfig
from ext_proc.core.kv_state import PublisherState
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry, Snapshot
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.sources.kv_publishers import Publishers, publishers
from ext_proc.sources.kv_reader import KvReader, Listener

NOTICE_S = 0.1
"""Time between two looks for endpoints that came or went."""

SILENCE_S = 30.0
"""An engine that has been at work for so long must have told of it."""

CUT_S = 5.0
"""An engine whose events were heard, and to which there has been no connection for so long, holds who knows what."""

NO_EVENTS = "no_events"
NOT_CONNECTED = "not_connected"

_TIDY = 5_000
"""Blocks taken back at a time, about a millisecond."""


class KvEventListener:
    """Listens to every endpoint of a registry that is said to publish, while `run` runs.

    Args:
        config: where publishers are; see `configure`.
        registry: which endpoints there are.
        resident: who is told.
        is_busy: tells whether a slot has requests in flight.
        listener: hears of messages.
        changed: hears of an endpoint whose events have another problem than before, a metric label; empty for none.
    """

    def __init__(
        self,
        config: Config,
        *,
        registry: Registry,
        resident: ResidentIndex,
        is_busy: Callable[[int], bool],
        listener: Listener,
        changed: Callable[[Endpoint, str], None],
    ) -> None:
        self._registry = registry
        self._resident = resident
        self._is_busy = is_busy
        self._listener = listener
        self._changed = changed
        self._watches: dict[int, _Watch] = {}
        self._turn = asyncio.Lock()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go by another configuration."""
        self._pools: Mapping[str, PoolConfig] = config.pools
        self._seen: Snapshot | None = None

    def silence(self, endpoint: Endpoint, now: float) -> float | None:
        """Return the seconds since an endpoint sent events, or since it is listened to; None if it is not."""
        watch = self._watches.get(endpoint.generation)
        return None if watch is None else max(now - watch.heard_at, 0.0)

    def states(self, endpoint: Endpoint, now: float) -> tuple[PublisherState, ...]:
        """Tell how listening to each publisher of an endpoint goes; none if it is not listened to."""
        watch = self._watches.get(endpoint.generation)
        return () if watch is None else tuple(reader.state(now) for reader in watch.readers)

    @property
    def is_degraded(self) -> bool:
        """Whether the events of some endpoint cannot be gone by: none come, or some are missing."""
        return any(watch.problem or watch.is_waiting for watch in self._watches.values())

    async def run(self) -> None:
        """Follow the registry until cancelled; no engine can end this."""
        with zmq.asyncio.Context() as context:
            try:
                while True:
                    self._follow_registry(context)
                    self._look_for_silence(time.monotonic())
                    self._resident.tidy(_TIDY)
                    await asyncio.sleep(NOTICE_S)
            finally:
                tasks = [task for watch in list(self._watches.values()) for task in self._end(watch)]
                self._watches.clear()
                self._seen = None
                await asyncio.gather(*tasks, return_exceptions=True)

    def _follow_registry(self, context: zmq.asyncio.Context) -> None:
        snapshot = self._registry.snapshot
        if snapshot is self._seen:
            return
        self._seen = snapshot
        wanted: dict[int, tuple[Endpoint, Publishers]] = {}
        for endpoint in snapshot.endpoints:
            source = publishers(endpoint, self._pools.get(endpoint.pool))
            if source is not None:
                wanted[endpoint.generation] = endpoint, source
        # All that go first: their slots may be in use again.
        for generation, watch in list(self._watches.items()):
            if generation not in wanted or wanted[generation][1] != watch.source:
                self._end(watch)
                del self._watches[generation]
        for generation, (endpoint, source) in wanted.items():
            if generation not in self._watches:
                self._watches[generation] = self._begin(context, endpoint, source)

    def _begin(self, context: zmq.asyncio.Context, endpoint: Endpoint, source: Publishers) -> _Watch:
        watch = _Watch(endpoint, source)
        for rank, (address, replay) in enumerate(source.addresses):
            feed = self._resident.feed(endpoint.slot, rank, source.weights, is_pinned=source.is_pinned)
            reader = KvReader(context, feed, (address, replay), source.topic, self._turn, watch.heard, self._listener)
            watch.readers.append(reader)
            watch.tasks.append(asyncio.create_task(reader.run()))
        return watch

    def _end(self, watch: _Watch) -> list[asyncio.Task[None]]:
        self._resident.remove(watch.endpoint.slot)
        for task in watch.tasks:
            task.cancel()
        return watch.tasks

    def _look_for_silence(self, now: float) -> None:
        for watch in self._watches.values():
            if watch.is_heard:
                problem = NOT_CONNECTED if watch.mistrust_cut(now) else ""
            elif watch.busy_at is None:
                watch.busy_at = now if self._is_busy(watch.endpoint.slot) else None
                continue
            else:
                problem = NO_EVENTS if now - watch.busy_at > SILENCE_S else ""
            if problem != watch.problem:
                watch.problem = problem
                for reader in watch.readers if problem == NO_EVENTS else ():
                    reader.feed.mistrust()  # what was asked for at the start is old by now
                self._changed(watch.endpoint, problem)


class _Watch:
    """One endpoint that is listened to."""

    def __init__(self, endpoint: Endpoint, source: Publishers) -> None:
        self.endpoint = endpoint
        self.source = source
        self.readers: list[KvReader] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.heard_at = time.monotonic()
        self.busy_at: float | None = None
        self.is_heard = False
        self.problem = ""

    @property
    def is_waiting(self) -> bool:
        """Whether an answer to a question for lost messages is awaited."""
        return any(reader.feed.is_waiting for reader in self.readers)

    def mistrust_cut(self, now: float) -> bool:
        """Believe no publisher that has not been connected any more for too long; return whether there is one."""
        cut = [reader for reader in self.readers if reader.cut_at is not None and now - reader.cut_at > CUT_S]
        for reader in cut:
            reader.feed.mistrust()
        return bool(cut)

    def heard(self) -> None:
        """Note that a message came."""
        self.is_heard = True
        self.heard_at = time.monotonic()
