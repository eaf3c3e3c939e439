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
from ext_proc.core.pool import Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.snapshot import Snapshot
from ext_proc.sources.kv_publishers import Publishers, publishers
from ext_proc.sources.kv_reader import KvReader, Listener
from ext_proc.sources.watches import NOTICE_S, Watches

LOOK_S = 0.5
"""Time between two looks for endpoints that have become silent, while none is suspected of it."""

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
        self._resident = resident
        self._is_busy = is_busy
        self._listener = listener
        self._changed = changed
        self._watches: Watches[tuple[Endpoint, Publishers], _Watch] = Watches(
            registry, self._wanted, lambda watch, asked: watch.source == asked[1], self._ended
        )
        self._turn = asyncio.Lock()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go by another configuration."""
        self._pools: Mapping[str, PoolConfig] = config.pools
        self._watches.reconsider()

    def silence(self, endpoint: Endpoint, now: float) -> float | None:
        """Return the seconds since an endpoint sent events, or since it is listened to; None if it is not."""
        watch = self._watches.of(endpoint)
        return None if watch is None else max(now - watch.heard_at, 0.0)

    def states(self, endpoint: Endpoint, now: float) -> tuple[PublisherState, ...]:
        """Tell how listening to each publisher of an endpoint goes; none if it is not listened to."""
        watch = self._watches.of(endpoint)
        return () if watch is None else tuple(reader.state(now) for reader in watch.readers)

    @property
    def is_degraded(self) -> bool:
        """Whether the events of some endpoint cannot be gone by: none come, or some are missing."""
        return any(watch.problem or watch.is_waiting for watch in self._watches.values())

    async def run(self) -> None:
        """Follow the registry until cancelled; no engine can end this."""
        with zmq.asyncio.Context() as context:
            await self._watches.run(lambda asked: self._begin(context, *asked), self._tend)

    def _wanted(self, snapshot: Snapshot) -> dict[int, tuple[Endpoint, Publishers]]:
        found = ((endpoint, publishers(endpoint, self._pools.get(endpoint.pool))) for endpoint in snapshot.endpoints)
        return {endpoint.generation: (endpoint, source) for endpoint, source in found if source is not None}

    def _begin(self, context: zmq.asyncio.Context, endpoint: Endpoint, source: Publishers) -> _Watch:
        watch = _Watch(endpoint, source)
        for rank, (address, replay) in enumerate(source.addresses):
            feed = self._resident.feed(endpoint.slot, rank, source.weights, is_pinned=source.is_pinned)
            reader = KvReader(context, feed, (address, replay), source.topic, self._turn, watch.heard, self._listener)
            watch.readers.append(reader)
            watch.tasks.append(asyncio.create_task(reader.run()))
        return watch

    def _ended(self, watch: _Watch) -> None:
        self._resident.remove(watch.endpoint.slot)

    def _tend(self) -> float | None:
        """Look for endpoints that are silent, and free memory; returns when to do so again."""
        self._look_for_silence(time.monotonic())
        if self._resident.tidy(_TIDY) or any(watch.is_suspect for watch in self._watches.values()):
            return NOTICE_S
        return LOOK_S if self._watches else None

    def _look_for_silence(self, now: float) -> None:
        for watch in self._watches.values():
            if watch.is_heard:
                problem = NOT_CONNECTED if watch.mistrust_cut(now) or watch.lacks_a_rank(now) else ""
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
        self.problem = ""
        self._first_heard_at: float | None = None

    @property
    def is_heard(self) -> bool:
        """Whether any of the publishers has been heard."""
        return self._first_heard_at is not None

    @property
    def is_waiting(self) -> bool:
        """Whether an answer to a question for lost messages is awaited."""
        return any(reader.feed.is_waiting for reader in self.readers)

    @property
    def is_suspect(self) -> bool:
        """Whether something is wrong, or will be if nothing is heard soon."""
        is_late = self.busy_at is not None and not self.is_heard
        return bool(self.problem) or is_late or any(reader.cut_at is not None for reader in self.readers)

    def mistrust_cut(self, now: float) -> bool:
        """Believe no publisher that has not been connected any more for too long; return whether there is one."""
        cut = [reader for reader in self.readers if reader.cut_at is not None and now - reader.cut_at > CUT_S]
        for reader in cut:
            reader.feed.mistrust()
        return bool(cut)

    def lacks_a_rank(self, now: float) -> bool:
        """Tell whether a publisher was never connected, though another one was heard long ago."""
        if self._first_heard_at is None or now - self._first_heard_at <= SILENCE_S:
            return False
        return any(not reader.is_connected and reader.cut_at is None for reader in self.readers)

    def heard(self) -> None:
        """Note that a message came."""
        self.heard_at = time.monotonic()
        if self._first_heard_at is None:
            self._first_heard_at = self.heard_at
