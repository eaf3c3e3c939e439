"""One measured window: load on one gateway, and what everybody used meanwhile."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks import proc
from benchmarks.stack import Gateway, LoadGenerator

FOREIGN_LIMIT = 0.3
"""Cores that other programs may use during a window before it is measured again."""


class Contestant(NamedTuple):
    """A gateway with its ext_proc server; no server means that the gateway has none."""

    gateway: Gateway
    server: int | None = None


class Case(NamedTuple):
    """What is asked of a contestant: body bytes, parallel connections, and whether streams are asked for."""

    size: int
    connections: int
    stream: bool = False


class Window(NamedTuple):
    """What one window showed; CPU in microseconds per request, times in milliseconds, foreign load in cores."""

    requests: float
    errors: float
    rate: float
    p50_ms: float
    p99_ms: float
    server_us: float
    envoy_us: float
    switches: float
    foreign: float


class Pair(NamedTuple):
    """Two contestants in the same case, one right after the other."""

    product: Window
    base: Window

    @property
    def foreign(self) -> float:
        """The higher foreign load of the two windows."""
        return max(self.product.foreign, self.base.foreign)


class Meter:
    """Measures windows, and measures again what other programs disturbed, as long as the allowance lasts.

    Args:
        generator: sends the requests.
        ours: ids of all processes of the benchmark, so that the rest of the machine's work can be told apart.
        seconds: length of a window.
        repeats: how many pairs may be measured again.
    """

    def __init__(self, generator: LoadGenerator, ours: Iterable[int], seconds: float, repeats: int) -> None:
        self.errors = 0
        self.noisy = 0
        self._generator = generator
        self._ours = (os.getpid(), generator.pid, *ours)
        self._seconds = seconds
        self._repeats = repeats

    async def pair(self, product: Contestant, base: Contestant, case: Case, *, base_first: bool) -> Pair:
        """Measure two contestants; the calmest of the tries counts."""
        tries = [await self._pair(product, base, case, base_first=base_first)]
        while tries[-1].foreign > FOREIGN_LIMIT and self._repeats > 0:
            self._repeats -= 1
            tries.append(await self._pair(product, base, case, base_first=base_first))
        best = min(tries, key=lambda pair: pair.foreign)
        self.noisy += best.foreign > FOREIGN_LIMIT
        return best

    async def _pair(self, product: Contestant, base: Contestant, case: Case, *, base_first: bool) -> Pair:
        if base_first:
            second = await self.window(base, case)
            return Pair(await self.window(product, case), second)
        return Pair(await self.window(product, case), await self.window(base, case))

    async def window(self, contestant: Contestant, case: Case) -> Window:
        """Warm up shortly, then measure."""
        port = contestant.gateway.port
        await self._generator.run(port, *case, seconds=self._seconds / 8)
        before = self._reading(contestant)
        result = await self._generator.run(port, *case, seconds=self._seconds)
        after = self._reading(contestant)
        if result["errors"]:
            self.errors += result["errors"]
            print(f"{result['errors']} errors, the last: {result['problem']}", file=sys.stderr)
        requests, seconds = max(result["requests"], 1), result["seconds"]
        server, envoy = after.server.since(before.server), after.envoy.since(before.envoy)
        return Window(
            requests=result["requests"],
            errors=result["errors"],
            rate=result["requests"] / seconds,
            p50_ms=result["p50_ms"],
            p99_ms=result["p99_ms"],
            server_us=server.cpu / requests * 1e6,
            envoy_us=envoy.cpu / requests * 1e6,
            switches=server.switches / requests,
            foreign=max(after.foreign - before.foreign, 0.0) / seconds,
        )

    def _reading(self, contestant: Contestant) -> _Reading:
        server = proc.used(contestant.server) if contestant.server else proc.Used(0.0, 0)
        foreign = proc.machine_cpu() - proc.cpu_of(self._ours)
        return _Reading(server, proc.used(contestant.gateway.pid), foreign)


class _Reading(NamedTuple):
    server: proc.Used
    envoy: proc.Used
    foreign: float


class Spread(NamedTuple):
    """Median, lowest and highest of a figure over pairs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Read as "0.86 (0.80 to 0.91)"."""
        digits = 2 if abs(self.median) < 10 else 0
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def spread(pairs: Sequence[Pair], figure: Callable[[Pair], float]) -> Spread:
    """Sum a figure up over pairs."""
    values = [figure(pair) for pair in pairs]
    return Spread(statistics.median(values), min(values), max(values))
