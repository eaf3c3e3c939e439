"""Keeps asking every engine whether it is well, and tells core what they answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import aiohttp
import msgspec

from ext_proc.config import Config, ProbesConfig
from ext_proc.core.health_states import SERVING, HealthState, Verdict
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.core.snapshot import Snapshot
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.probe_ask import Finding, ask_generation, ask_health, open_session
from ext_proc.sources.probe_rules import path_of
from ext_proc.sources.sleep_ask import NoSleepModeError, ask_sleep
from ext_proc.sources.watches import Watches

LEAST_PAUSE_S = 0.25
"""Time between two probes of an engine, however much there is against it."""

CONCURRENCY = 256

SLEEPS = "vllm"
"""The engine that can sleep."""


class Listener(Protocol):
    """Hears what probes found; called on the event loop."""

    def probed(self, endpoint: Endpoint, finding: Finding | None) -> None:
        """A probe has ended; without a finding if it could not be sent."""


class Prober:
    """Probes every endpoint of a registry while `run` runs.

    Args:
        config: how that is done; see `configure`.
        registry: which endpoints there are.
        state: where a slot stands: who does not serve is probed more often.
        engine: what answers at an endpoint; an empty name where that is not known.
        listener: hears what comes of it.
        keys: the API keys of the engines; None where they want none.
        believed: whether an engine sleeps; None where nothing else says so and it has to be asked.
        rng: spreads the probes, so that many engines are not asked at one moment.
    """

    def __init__(
        self,
        config: Config,
        *,
        registry: Registry,
        state: Callable[[int], HealthState],
        engine: Callable[[Endpoint], str],
        listener: Listener,
        keys: ApiKeys | None = None,
        believed: Callable[[Endpoint], bool | None] = lambda _endpoint: False,
        rng: random.Random | None = None,
    ) -> None:
        self._state = state
        self._engine = engine
        self._listener = listener
        self._believed = believed
        self._keys = keys or ApiKeys()
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._turns = asyncio.Semaphore(CONCURRENCY)
        self._watches: Watches[Endpoint, _Watch] = Watches(registry, self._wanted, _Watch.goes_on)
        self._able_at = time.monotonic()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go by another configuration from the next probe on."""
        self._settings: ProbesConfig = config.health.probes
        self._watches.reconsider()
        for watch in self._watches.values():
            watch.wake.set()

    def hurry(self, endpoint: Endpoint) -> None:
        """Probe an endpoint now rather than at its next turn."""
        watch = self._watches.of(endpoint)
        if watch is not None:
            watch.is_doubted = True
            watch.wake.set()

    def is_degraded(self, now: float) -> bool:
        """Tell whether no probe could be made for three of their intervals."""
        if not self._settings.enabled or not self._watches:
            return False
        return now - self._able_at > 3 * self._settings.interval_s + self._settings.timeout_s

    async def run(self) -> None:
        """Follow the registry until cancelled; no engine and no listener can end this."""
        async with open_session() as session:
            await self._watches.run(lambda endpoint: self._begin(session, endpoint))

    def _wanted(self, snapshot: Snapshot) -> dict[int, Endpoint]:
        if not self._watches:
            self._able_at = time.monotonic()
        return {endpoint.generation: endpoint for endpoint in snapshot.endpoints if self._settings.enabled}

    def _begin(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> _Watch:
        watch = _Watch(endpoint)
        watch.tasks.append(asyncio.create_task(self._keep_probing(session, watch)))
        return watch

    async def _keep_probing(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        while True:
            began = time.monotonic()
            watch.wake.clear()
            try:
                finding = await self._probe(session, watch)
            except Exception:  # noqa: BLE001 - one engine's surprise must not leave it unprobed for ever
                finding = None
            else:
                self._able_at = time.monotonic()
            watch.verdict = None if finding is None else finding.verdict
            with contextlib.suppress(Exception):
                self._listener.probed(watch.endpoint, finding)
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.wake.wait(), max(began + self._pause(watch) - time.monotonic(), 0.0))

    async def _probe(self, session: aiohttp.ClientSession, watch: _Watch) -> Finding:
        endpoint, settings = watch.endpoint, self._settings
        engine = self._engine(endpoint)
        path = path_of(engine) if settings.path is None else f"/{settings.path.strip().lstrip('/')}"
        async with self._turns:
            headers = self._keys.headers(endpoint.pool)
            finding = await ask_health(session, endpoint, path, engine, settings.timeout_s, headers)
            asleep = await self._ask_sleep(session, watch, finding, headers) if engine == SLEEPS else None
            believed = self._believed(endpoint) if asleep is None else asleep
            if finding.verdict is Verdict.GOOD and settings.generate and not believed:
                finding = await ask_generation(session, endpoint, settings.timeout_s, headers)
        return msgspec.structs.replace(finding, asleep=asleep)

    async def _ask_sleep(
        self, session: aiohttp.ClientSession, watch: _Watch, finding: Finding, headers: Mapping[str, str]
    ) -> bool | None:
        """Ask whether an engine sleeps, if its metrics do not say, or there is some doubt about it; never in vain."""
        if finding.verdict is Verdict.FAILED:
            watch.has_sleep_mode = True  # it may be started in another way
            return None
        is_doubted, watch.is_doubted = watch.is_doubted, False
        if not watch.has_sleep_mode or (self._believed(watch.endpoint) is False and not is_doubted):
            return None
        try:
            return await ask_sleep(session, watch.endpoint, self._settings.timeout_s, headers)
        except NoSleepModeError:
            watch.has_sleep_mode = False
            return None

    def _pause(self, watch: _Watch) -> float:
        settings = self._settings
        pause = min(settings.unwell_interval_s, settings.interval_s)
        if self._state(watch.endpoint.slot) in SERVING:
            if watch.verdict is not Verdict.FAILED and not self._believed(watch.endpoint):
                pause = settings.interval_s
        elif watch.verdict is Verdict.GOOD:  # traffic waits for it: be sure of it soon
            return LEAST_PAUSE_S
        return pause * self._rng.uniform(0.8, 1.2)


class _Watch:
    """One endpoint under observation."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.tasks: list[asyncio.Task[None]] = []
        self.wake = asyncio.Event()
        self.verdict: Verdict | None = None
        self.is_doubted = False
        self.has_sleep_mode = True

    def goes_on(self, endpoint: Endpoint) -> bool:
        """Go on with what is known of the endpoint now."""
        self.endpoint = endpoint
        return True
