"""Watches where Envoy sends requests: when the culprit is avoided, and when it is trusted again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from tests.fault.envoy import Envoy, HostCounts

INTERVAL_S = 0.1
WINDOW_S = 1.0
AVOIDED_SHARE = 0.25
"""Of a fair share of the attempts: less is avoided, since probes must go on; more is trusted."""


class Sample(msgspec.Struct, frozen=True):
    """What Envoy had counted at a moment."""

    at: float
    counts: Mapping[str, HostCounts]

    def attempts(self, address: str) -> int:
        """Return the attempts at an engine up to then."""
        return self.counts.get(address, HostCounts()).attempts

    def failures(self, address: str) -> int:
        """Return the failed ones up to then."""
        return self.counts.get(address, HostCounts()).failures

    @property
    def total(self) -> int:
        """Return all attempts up to then."""
        return sum(count.attempts for count in self.counts.values())


class Watch:
    """Samples of one run."""

    def __init__(self, envoy: Envoy) -> None:
        self._envoy = envoy
        self.samples: list[Sample] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take samples until the context is left."""
        task = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def first_failure(self, address: str, since: float) -> float | None:
        """When an engine's failures grew for the first time after a moment; None if they did not."""
        before = max((s.failures(address) for s in self.samples if s.at <= since), default=0)
        return next((s.at for s in self.samples if s.at > since and s.failures(address) > before), None)

    def avoided(self, address: str, since: float, until: float) -> float | None:
        """Seconds from a moment to the first window in which an engine got far less than its share; None if none."""
        return self._first(address, since, until, lambda share: share <= AVOIDED_SHARE)

    def trusted(self, address: str, since: float, until: float) -> float | None:
        """Seconds from a moment to the first window in which an engine got a share again; None if none."""
        return self._first(address, since, until, lambda share: share > AVOIDED_SHARE)

    def _first(self, address: str, since: float, until: float, holds: Callable[[float], bool]) -> float | None:
        for place, sample in enumerate(self.samples):
            if not since <= sample.at <= until:
                continue
            later = next((s for s in self.samples[place:] if s.at >= sample.at + WINDOW_S), None)
            if later is None or later.at > until + INTERVAL_S:
                return None
            sent = later.total - sample.total
            if sent >= 4 and holds((later.attempts(address) - sample.attempts(address)) * len(later.counts) / sent):
                return max(sample.at - since, 0.0)
        return None

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                self.samples.append(Sample(time.monotonic(), await self._envoy.counts()))
            await asyncio.sleep(INTERVAL_S)
