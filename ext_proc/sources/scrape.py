"""Keeps reading the engines' pages of metrics, each at its own pace, and tells core what they say."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import aiohttp
import msgspec
from yarl import URL

from ext_proc.config import Config, PoolConfig, ScrapeConfig
from ext_proc.core.model import Endpoint, MetricsSource
from ext_proc.core.pool import Change, Registry
from ext_proc.core.signals import EngineSignals, Interval, Signals
from ext_proc.core.snapshot import Snapshot
from ext_proc.sources.scrape_engines import PageReader, Reading
from ext_proc.sources.scrape_fetch import ScrapeError, fetch_page, open_session
from ext_proc.sources.watches import Watches

TURN_S = 0.05
"""Endpoints whose turns come this close together are read in one go: with code and data still in the CPU's caches a
reading costs a third less. Of 200 endpoints ten share a turn, which holds up other work for two or three milliseconds.
"""

IDLE_AFTER_S = 10.0
LAST_RETRY_S = 15.0
"""Cap of the doubling wait after failures."""

NO_METRICS = "ollama"
UNKNOWN_ENGINE = "unknown_engine"

_PATH = "/metrics"
_OTHER_PATH = "/prometheus/metrics"
_NOT_THERE = frozenset({"http_404", "not_metrics"})
_PATHS: Mapping[str | None, str] = MappingProxyType({"tensorrt-llm": _OTHER_PATH})
_PORTS: Mapping[str | None, int] = MappingProxyType({"triton": 8002})


class Listener(Protocol):
    """Hears what comes of reading metrics; called on the event loop."""

    def scraped(self, result: str, engine: str, missing: tuple[str, ...]) -> None:
        """An attempt ended: `ok`, `truncated`, `unknown_engine` or why it failed; what its engine did not say."""

    def state_changed(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Reading an endpoint's metrics has another problem than before, a metric label; empty if it has none."""

    def sleep_told(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """An engine told that it sleeps, or that it is awake."""

    def size_learnt(self, change: Change) -> None:
        """An engine told the size of its KV cache, or how many data-parallel ranks it has."""

    def interval_ended(self, endpoint: Endpoint, interval: Interval, signals: EngineSignals) -> None:
        """What an engine did between two readings is known; `signals` are the later one."""


class ScrapeStatus(msgspec.Struct, frozen=True):
    """How reading an endpoint's metrics goes.

    Attributes:
        engine: the engine that answers; empty while unknown.
        problem: why nothing is known of it, a metric label; empty if all is well.
    """

    engine: str = ""
    problem: str = ""


class Scraper:
    """Reads the metrics of every endpoint of a registry while `run` runs.

    Args:
        config: where metrics are, and how often they are read; see `configure`.
        token: bearer token sent with each reading.
        registry: which endpoints there are, and who is told of capacities.
        signals: who is told of the rest.
        is_busy: tells whether a slot has requests in flight.
        listener: hears what happens.
        rng: spreads the readings, so that many engines are not read at one moment.
    """

    def __init__(
        self,
        config: Config,
        token: str | None,
        *,
        registry: Registry,
        signals: Signals,
        is_busy: Callable[[int], bool],
        listener: Listener,
        rng: random.Random | None = None,
    ) -> None:
        self._registry = registry
        self._signals = signals
        self._is_busy = is_busy
        self._listener = listener
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._watches: Watches[tuple[Endpoint, MetricsSource], _Watch] = Watches(
            registry, self._wanted, lambda watch, asked: watch.source == asked[1]
        )
        self.configure(config, token)

    def configure(self, config: Config, token: str | None) -> None:
        """Go by another configuration from the next reading on."""
        self._settings: ScrapeConfig = config.scrape
        self._pools: Mapping[str, PoolConfig] = config.pools
        self._patience = aiohttp.ClientTimeout(total=2 * config.scrape.interval_s)
        self._token = token
        self._signals.fresh = config.scrape.fresh_s
        self._watches.reconsider()

    def status(self, endpoint: Endpoint) -> ScrapeStatus:
        """Return how reading an endpoint's metrics goes."""
        watch = self._watches.of(endpoint)
        return ScrapeStatus() if watch is None else ScrapeStatus(watch.engine, watch.problem)

    def is_degraded(self, now: float) -> bool:
        """Tell whether some engine that can be reached has not told its load for longer than that is believed."""
        return any(
            now - watch.heard_at > self._signals.fresh and watch.problem != "unreachable"
            for watch in self._watches.values()
        )

    async def run(self) -> None:
        """Follow the registry until cancelled; no engine and no listener can end this."""
        async with open_session() as session:
            await self._watches.run(lambda asked: self._begin(session, *asked))

    def _begin(self, session: aiohttp.ClientSession, endpoint: Endpoint, source: MetricsSource) -> _Watch:
        watch = _Watch(endpoint, source)
        watch.tasks.append(asyncio.create_task(self._keep_reading(session, watch)))
        return watch

    def _wanted(self, snapshot: Snapshot) -> dict[int, tuple[Endpoint, MetricsSource]]:
        if not self._settings.enabled:
            return {}
        found = (
            (endpoint, metrics_source(endpoint, self._pools.get(endpoint.pool))) for endpoint in snapshot.endpoints
        )
        return {endpoint.generation: (endpoint, source) for endpoint, source in found if source.engine != NO_METRICS}

    async def _keep_reading(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        await asyncio.sleep(self._settings.interval_s * self._rng.random())
        while True:
            began = time.monotonic()
            try:
                await self._read(session, watch)
            except Exception as error:  # noqa: BLE001 - one engine's surprise must not leave it unread for ever
                self._failed(watch, "internal", error)
            pause = self._interval(watch) * self._rng.uniform(0.9, 1.1)
            now = time.monotonic()
            await asyncio.sleep(_next_turn(max(began + pause, now + pause / 10)) - now)

    async def _read(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        try:
            page, watch.url = await fetch_page(session, watch.url, patience=self._patience, token=self._token)
        except ScrapeError as error:
            watch.try_elsewhere(error.reason)
            self._failed(watch, error.reason, error)
            return
        now = time.monotonic()
        reading = watch.reader.read(page, now)
        watch.failures = 0
        watch.engine = reading.engine
        result = UNKNOWN_ENGINE if not reading.engine else "truncated" if reading.truncated else "ok"
        self._listener.scraped(result, reading.engine, reading.missing)
        self._report(watch, "" if reading.engine else UNKNOWN_ENGINE, None)
        self._note(watch, reading, now)

    def _note(self, watch: _Watch, reading: Reading, now: float) -> None:
        endpoint = self._registry.snapshot.by_address.get(watch.endpoint.address)
        if endpoint is None or endpoint.generation != watch.endpoint.generation:
            return
        signals = reading.signals
        if reading.engine:
            watch.heard_at = now
        if self._is_busy(endpoint.slot) or signals.running or signals.waiting:
            watch.busy_at = now
        interval = self._signals.note(endpoint.slot, signals)
        if signals.asleep is not None:
            self._listener.sleep_told(endpoint, signals)
        if signals.kv_tokens is not None:
            change = self._registry.learn_capacity(endpoint.address, endpoint.generation, signals.kv_tokens)
            if change is not None:
                self._listener.size_learnt(change)
        if signals.ranks is not None:
            change = self._registry.learn_ranks(endpoint.address, endpoint.generation, signals.ranks)
            if change is not None:
                self._listener.size_learnt(change)
        if interval is not None:
            self._listener.interval_ended(endpoint, interval, signals)

    def _failed(self, watch: _Watch, reason: str, error: Exception) -> None:
        watch.failures += 1
        self._listener.scraped(reason, watch.engine, ())
        self._report(watch, reason, error)

    def _report(self, watch: _Watch, problem: str, error: Exception | None) -> None:
        if problem != watch.problem:
            watch.problem = problem
            self._listener.state_changed(watch.endpoint, problem, error)

    def _interval(self, watch: _Watch) -> float:
        settings = self._settings
        if watch.failures:
            return min(max(LAST_RETRY_S, settings.interval_s), settings.interval_s * 2.0 ** min(watch.failures, 16))
        is_idle = time.monotonic() - watch.busy_at > IDLE_AFTER_S
        return max(settings.idle_interval_s, settings.interval_s) if is_idle else settings.interval_s


class _Watch:
    """One endpoint under observation."""

    def __init__(self, endpoint: Endpoint, source: MetricsSource) -> None:
        self.endpoint = endpoint
        self.source = source
        self.reader = PageReader(source.engine)
        self.tasks: list[asyncio.Task[None]] = []
        self.engine = ""
        self.problem = ""
        self.failures = 0
        self.busy_at = self.heard_at = time.monotonic()
        self.url = self._first = metrics_url(endpoint.address, source, source.path)

    def try_elsewhere(self, reason: str) -> None:
        """After a failure that says that there is no page, look at the other usual path the next time."""
        if reason not in _NOT_THERE:
            return
        path = _PATH if self._first.path == _OTHER_PATH else _OTHER_PATH
        is_first = self.url == self._first
        self.url = self._first.with_path(path) if is_first and self.source.path is None else self._first


def _next_turn(at: float) -> float:
    return math.ceil(at / TURN_S) * TURN_S


def metrics_source(endpoint: Endpoint, pool: PoolConfig | None) -> MetricsSource:
    """Join what is configured for an endpoint with what is configured for its pool."""
    own = endpoint.metrics
    if pool is None:
        return own
    return MetricsSource(
        own.engine or pool.engine,
        own.path or pool.metrics_path,
        own.port or pool.metrics_port,
    )


def metrics_url(address: str, source: MetricsSource, path: str | None = None) -> URL:
    """Return where an endpoint's page of metrics is, as far as that is known before it was looked for."""
    path = path or _PATHS.get(source.engine, _PATH)
    host, _, port = address.rpartition(":")
    return URL(f"http://{host}:{source.port or _PORTS.get(source.engine, port)}{path}")
