"""A fleet in virtual time: requests arrive, a router sends them to engines, and hears of it late."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from statistics import fmean, pstdev
from typing import Any

import msgspec

from benchmarks.independent.engine import Engine
from benchmarks.independent.hardware import Hardware, Job
from benchmarks.independent.router import Router
from benchmarks.independent.workloads import Request, Workload
from ext_proc.core.signals import Times

TOKEN_LAG = 0.005
EVENT_LAG = 0.005
END_LAG = 0.2
"""Seconds after which first tokens, reports on caches and ends are heard of."""

_FIRST_TOKEN_S, _PROMPT_RATE, _TOKEN_S = 2.0, 37_000.0, 0.1
"""A good answer begins within 2 s and a second per 37,000 tokens of the prompt, and takes 100 ms per token."""


class Result(msgspec.Struct, frozen=True):
    """What a run came to; times in seconds.

    Attributes:
        ttft: mean time to the first token.
        p99: its 99th percentile.
        tpot: mean time per further token.
        duration: mean time to the last token.
        hit: share of prompt tokens found cached.
        goodput: share of answers that were good.
        spread: coefficient of variation over engines of the tokens they had to prefill.
        preemptions: how often a sequence had to give up its memory.
        requests: how many were measured.
    """

    ttft: float
    p99: float
    tpot: float
    duration: float
    hit: float
    goodput: float
    spread: float
    preemptions: int
    requests: int


class Outage(msgspec.Struct, frozen=True):
    """An engine that loses everything and is away for a while; what it had in hand is sent again at once.

    Attributes:
        place: of the engine.
        at: when, seconds.
        seconds: how long it is away.
    """

    place: int
    at: float
    seconds: float


class _Kind(enum.IntEnum):
    """What happens; of two things at one time the first listed comes first."""

    STEP = 0
    REPORT = 1
    TOKEN = 2
    END = 3
    SCRAPE = 4
    ARRIVAL = 5
    DOWN = 6
    UP = 7


class Fleet:
    """Engines, and a router in front of them.

    Args:
        hardware: of each engine.
        route: makes the router for the engines.
        scrape_s: seconds between two readings of an engine's metrics.
    """

    def __init__(
        self, hardware: Sequence[Hardware], route: Callable[[Sequence[Engine]], Router], scrape_s: float = inf
    ) -> None:
        self.engines = [Engine(each) for each in hardware]
        self._router = route(self.engines)
        self._scrape_s = scrape_s
        self._ttft = [(0.0, 0)] * len(self.engines)
        self._heap: list[tuple[float, int, int, Any]] = []
        self._order = count()
        self._requests: dict[Job, tuple[int, Request]] = {}
        self._left = 0
        self._done: list[Job] = []

    def run(self, workload: Workload, outage: Outage | None = None) -> Result:
        """Let a workload pass and return what became of it."""
        if outage is not None:
            self._push(outage.at, _Kind.DOWN, outage.place)
            self._push(outage.at + outage.seconds, _Kind.UP, outage.place)
        for request in workload.requests:
            self._push(request.at, _Kind.ARRIVAL, request)
        if self._scrape_s < inf:
            for place in range(len(self.engines)):
                self._push(self._scrape_s * (place + 1) / len(self.engines), _Kind.SCRAPE, place)
        self._left = len(workload.requests)
        while self._left or self._requests:
            now, kind, _, what = heapq.heappop(self._heap)
            if kind is _Kind.STEP:
                self._step(what, now, workload.end)
            elif kind is _Kind.ARRIVAL:
                self._arrive(what, now)
            else:
                self._tell(_Kind(kind), what, now)
        return _summary([job for job in self._done if workload.begin <= job.arrived < workload.end], self.engines)

    def _push(self, at: float, kind: _Kind, what: object) -> None:
        heapq.heappush(self._heap, (at, kind, next(self._order), what))

    def _arrive(self, request: Request, now: float) -> None:
        job = Job(request.runs, request.prompt, request.output, request.answer)
        job.target = job.prompt
        name = next(self._order)
        self._left -= 1
        self._requests[job] = (name, request)
        self._send(name, job, now)

    def _send(self, name: int, job: Job, now: float) -> None:
        place = self._router.pick(name, job, now)
        engine = self.engines[place]
        due = engine.due
        engine.submit(job, now)
        if engine.due != due:
            self._push(engine.due, _Kind.STEP, place)

    def _fail(self, place: int, now: float) -> None:
        """Let an engine lose everything."""
        jobs = list(self.engines[place].jobs())
        self.engines[place] = Engine(self.engines[place].hardware)
        self._router.went(place, now)
        for job in jobs:
            name, arrived = self._requests[job][0], job.arrived
            self._router.lost(name, now)
            job.holding = job.cached = None
            job.computed = job.generated = 0
            self._send(name, job, now)
            job.arrived = arrived

    def _step(self, place: int, now: float, end: float) -> None:
        engine = self.engines[place]
        if engine.due != now:
            return  # it was to end later, and a new job has cut it short
        firsts, finished, changes = engine.run()
        if engine.due < inf:
            self._push(engine.due, _Kind.STEP, place)
        if changes:
            self._push(now + EVENT_LAG, _Kind.REPORT, (place, changes))
        for job in firsts:
            total, number = self._ttft[place]
            self._ttft[place] = (total + now - job.arrived, number + 1)
            self._push(now + TOKEN_LAG, _Kind.TOKEN, self._requests[job][0])
        for job in finished:
            self._done.append(job)
            _, request = self._requests[job]
            self._push(now + END_LAG, _Kind.END, job)
            following = request.following
            if following is not None and now + following.at < end:
                self._left += 1
                self._push(now + following.at, _Kind.ARRIVAL, following)

    def _tell(self, kind: _Kind, what: Any, now: float) -> None:
        if kind is _Kind.TOKEN:
            self._router.first_token(what, now)
        elif kind is _Kind.END:
            self._router.ended(self._requests.pop(what)[0], what, now)
        elif kind is _Kind.DOWN:
            self._fail(what, now)
        elif kind is _Kind.UP:
            self._router.came(what)
        elif kind is _Kind.REPORT:
            place, changes = what
            self._router.changed(place, changes)
        else:
            total, number = self._ttft[what]
            self._router.scraped(what, self.engines[what], Times(total, number), now)
            self._push(now + self._scrape_s, _Kind.SCRAPE, what)


def _summary(jobs: Sequence[Job], engines: Sequence[Engine]) -> Result:
    ttfts = sorted(job.first_token - job.arrived for job in jobs)
    uncached = [engine.uncached for engine in engines]
    return Result(
        ttft=fmean(ttfts),
        p99=ttfts[int(0.99 * len(ttfts))],
        tpot=fmean(_tpot(job) for job in jobs if job.output > 1),
        duration=fmean(job.finished - job.arrived for job in jobs),
        hit=sum(job.cached or 0 for job in jobs) / sum(job.prompt for job in jobs),
        goodput=fmean(_is_good(job) for job in jobs),
        spread=pstdev(uncached) / fmean(uncached),
        preemptions=sum(engine.preemptions for engine in engines),
        requests=len(jobs),
    )


def _tpot(job: Job) -> float:
    return (job.finished - job.first_token) / max(job.output - 1, 1)


def _is_good(job: Job) -> bool:
    return job.first_token - job.arrived <= _FIRST_TOKEN_S + job.prompt / _PROMPT_RATE and _tpot(job) <= _TOKEN_S
