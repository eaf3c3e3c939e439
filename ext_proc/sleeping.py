"""Carries what engines say of their sleep to where it belongs, and wakes one where requests wait for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import aiohttp

from ext_proc.config import Config
from ext_proc.core.admission import Admission
from ext_proc.core.health import HealthMonitor
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import PrefixIndex
from ext_proc.core.signals import FADES, EngineSignals, Signals
from ext_proc.core.sleepers import Sleep, Sleepers, SleepLevel, Witness
from ext_proc.core.token_hits import TokenHits
from ext_proc.ops.events import Event
from ext_proc.sources.probe_ask import open_session
from ext_proc.sources.sleep_ask import ask_wake

WAKE_TIMEOUT_S = 60.0
"""Until a wake call is overdue: weights come from main memory in seconds."""

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
"""Between two wake calls to one endpoint; the pause doubles from call to call until it has been awake for so long."""

MOST_CALLS = 64
"""Wake calls under way at once."""


class Parts(Protocol):
    """The parts of the decision that have to do with sleep."""

    @property
    def registry(self) -> Registry:
        """The endpoints."""

    @property
    def sleepers(self) -> Sleepers:
        """Which of them sleep."""

    @property
    def health(self) -> HealthMonitor:
        """Their states of health."""

    @property
    def index(self) -> PrefixIndex:
        """What they are believed to hold."""

    @property
    def token_hits(self) -> TokenHits:
        """What they report to hold."""

    @property
    def signals(self) -> Signals:
        """What their metrics say."""

    @property
    def admission(self) -> Admission:
        """Who waits for them."""


class Sleeping:
    """Hears of sleep, and ends it where that is configured (`queue.wake_s`).

    Args:
        config: how often engines are asked.
        parts: of the decision.
        headers: those of what kvpicker asks the engines of a pool.
        called: counts wake calls by what came of them.
        say: writes a log event with its fields.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        headers: Callable[[str], Mapping[str, str]],
        called: Callable[[str], None],
        say: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = parts.registry
        self._sleepers = parts.sleepers
        self._health = parts.health
        self._index = parts.index
        self._token_hits = parts.token_hits
        self._signals = parts.signals
        self._admission = parts.admission
        self._headers = headers
        self._called = called
        self._say = say
        self._clock = clock
        self._calls: dict[int, _Call] = {}
        self._some_wait = asyncio.Event()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go by another configuration from now on."""
        probes = config.health.probes
        self._sleepers.stale = FADES * max(config.scrape.fresh_s, probes.interval_s + probes.timeout_s)

    def believed(self, endpoint: Endpoint) -> bool | None:
        """Tell whether an endpoint's engine sleeps; None while its metrics do not say, so that it has to be asked."""
        if endpoint.slot in self._sleepers:
            return True
        signals = self._signals.of(endpoint.slot, self._clock())
        return None if signals is None else signals.asleep

    def scraped(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """Take an engine's word from its page of metrics."""
        self.told(endpoint, Witness.METRICS, asleep=bool(signals.asleep), level=signals.sleep_level)

    def told(
        self, endpoint: Endpoint, witness: Witness, *, asleep: bool, level: SleepLevel = SleepLevel.UNKNOWN
    ) -> None:
        """Take an engine's word, unless another one has its address by now."""
        known = self._registry.snapshot.by_address.get(endpoint.address)
        if known is None or known.generation != endpoint.generation:
            return
        now, sleep = self._clock(), self._sleepers.of(known.slot)
        if asleep:
            self._fall_asleep(known, level, witness, now)
        elif sleep is not None and self._sleepers.awake(known, witness):
            self._health.woke(known, now)
            self._woke(sleep, now, witness)

    def tick(self, now: float) -> None:
        """Let words grow old."""
        for sleep in self._sleepers.expire(now):
            self._health.woke(sleep.endpoint, now, says_so=False)
            self._woke(sleep, now, None)

    def look(self) -> None:
        """Have somebody woken, if any sleep, for those who still wait; to be called now and then while any do."""
        if self._sleepers.slots:
            self._some_wait.set()

    async def run(self) -> None:
        """Wake whom requests wait for, until cancelled."""
        session = open_session()
        try:
            while True:
                await self._some_wait.wait()
                self._some_wait.clear()
                self._wake_some(session)
        finally:
            tasks = [call.task for call in self._calls.values() if call.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await session.close()

    def _fall_asleep(self, endpoint: Endpoint, level: SleepLevel, witness: Witness, now: float) -> None:
        was_asleep = endpoint.slot in self._sleepers
        if not self._sleepers.asleep(endpoint, level, witness, now):
            return
        sleep = self._sleepers.of(endpoint.slot)
        if sleep is not None and sleep.keeps_cache is False:
            self._forget_cache(endpoint)
        if was_asleep:
            return
        self._health.slept(endpoint)
        self._say(
            Event.ENDPOINT_SLEEPS,
            endpoint=endpoint.address,
            pool=endpoint.pool,
            level=level.value,
            evidence=witness.value,
        )

    def _woke(self, sleep: Sleep, now: float, witness: Witness | None) -> None:
        endpoint = sleep.endpoint
        if sleep.keeps_cache is None:  # most who sleep have given it up
            self._forget_cache(endpoint)
        evidence = "nothing is heard of its sleep any more" if witness is None else witness.value
        self._say(Event.ENDPOINT_WAKES, endpoint=endpoint.address, pool=endpoint.pool, evidence=evidence)
        if len(self._admission):
            self._admission.dispatch(now)

    def _forget_cache(self, endpoint: Endpoint) -> None:
        self._index.clear(endpoint.slot)
        self._token_hits.resident.cleared(endpoint.slot)
        self._token_hits.remove(endpoint.slot)

    def _wake_some(self, session: aiohttp.ClientSession) -> None:
        now = self._clock()
        for generation in [key for key, call in self._calls.items() if call.is_over(now)]:
            del self._calls[generation]
        for endpoints in self._admission.to_wake():
            self._wake_one(session, endpoints, now)

    def _wake_one(self, session: aiohttp.ClientSession, endpoints: Sequence[Endpoint], now: float) -> None:
        """Wake one of some endpoints, unless one is being woken: whom was tried least often, or longest ago."""
        calls = {endpoint.generation: self._calls.get(endpoint.generation) for endpoint in endpoints}
        if any(call is not None and call.task is not None for call in calls.values()):
            return
        idle = [one for one in endpoints if (call := calls[one.generation]) is None or now >= call.not_before]
        if not idle or sum(call.task is not None for call in self._calls.values()) >= MOST_CALLS:
            return
        chosen = min(idle, key=lambda one: 0 if (call := calls[one.generation]) is None else call.count)
        call = self._calls.setdefault(chosen.generation, _Call())
        call.task = asyncio.create_task(self._wake(session, chosen, call))

    async def _wake(self, session: aiohttp.ClientSession, endpoint: Endpoint, call: _Call) -> None:
        try:
            result = await ask_wake(session, endpoint, WAKE_TIMEOUT_S, self._headers(endpoint.pool))
        finally:
            call.end(self._clock())
        self._called(result)
        if result == "ok":
            self.told(endpoint, Witness.WAKE_CALL, asleep=False)
        else:
            self._say(Event.WAKE_FAILED, endpoint=endpoint.address, pool=endpoint.pool, reason=result)


class _Call:
    """The wake calls to one endpoint lately: the one under way, how many there were, and when the next may be."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.count = 0
        self.not_before = 0.0

    def end(self, now: float) -> None:
        self.task = None
        self.not_before = now + min(FIRST_PAUSE_S * 2.0 ** min(self.count, 10), LONGEST_PAUSE_S)
        self.count += 1

    def is_over(self, now: float) -> bool:
        return self.task is None and now > self.not_before + LONGEST_PAUSE_S
