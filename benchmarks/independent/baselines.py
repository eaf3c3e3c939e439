"""What `least-wait` is compared with beside kvpicker's own strategies: two oracles, and sglang's cache-aware one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from benchmarks.independent.cache import BLOCK_TOKENS, Change
from benchmarks.independent.engine import Engine
from benchmarks.independent.hardware import Job
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.signals import Times
from ext_proc.core.strategies import Context, Ranking


class CacheAware:
    """sglang-router's `cache_aware` with its defaults, as documented for the router of 2026.

    Least loaded if the loads differ by more than 64 requests and by more than 1.5 times; else the best prefix match if
    that is more than 0.3 of the prompt, else the least loaded (as its newer versions do; older ones took the smallest
    tree).
    """

    name = "cache-aware"

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Cost each candidate its requests, or what it lacks of the prompt."""
        loads = [float(load.in_flight) for load in context.loads]
        least, most, best = min(loads), max(loads), max(context.hits)
        is_unequal = most - least > 64 and most > 1.5 * least
        if is_unequal or best <= 0.3 * request.prompt_tokens:
            return Ranking(loads)
        return Ranking([float(best - hit) for hit in context.hits] if len(candidates) > 1 else loads)


class _AllKnowing:
    """Sees the engines themselves, and has no need to be told."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self._away = [0.0] * len(engines)

    def went(self, place: int, now: float) -> None:  # noqa: ARG002  as every router
        """Leave an engine alone."""
        self._away[place] = inf

    def came(self, place: int) -> None:
        """Take it again."""
        self._away[place] = 0.0

    def lost(self, name: int, now: float) -> None:
        """Know already."""

    def first_token(self, name: int, now: float) -> None:
        """Know already."""

    def ended(self, name: int, job: Job, now: float) -> None:
        """Know already."""

    def changed(self, place: int, changes: Sequence[Change]) -> None:
        """Know already."""

    def scraped(self, place: int, engine: Engine, ttft: Times, now: float) -> None:
        """Know already."""


class TtftOracle(_AllKnowing):
    """Takes the engine with the earliest first token, by true caches, queues, lengths of answers and step times."""

    def pick(self, name: int, job: Job, now: float) -> int:  # noqa: ARG002  as every router
        """Return the place of the engine that a request goes to."""
        costs = [
            (
                away + engine.wait([*queue(engine), (job.prompt - hit, job.prompt)], now) + memory(engine, job, hit),
                len(engine),
            )
            for engine, away in zip(self.engines, self._away, strict=True)
            for hit in (engine.hit(job),)
        ]
        return costs.index(min(costs))


class Oracle(_AllKnowing):
    """Takes the engine that the formula of `least-wait` prefers if all that it is told is true."""

    residence = 0.0
    """Mean seconds from dispatch to end (D), with the forgetting that kvpicker has."""

    def ended(self, name: int, job: Job, now: float) -> None:  # noqa: ARG002  as every router
        """Learn the residence, the one thing that the formula has as a mean."""
        taken = job.finished - job.arrived
        self.residence += 0.02 * (taken - self.residence) if self.residence else taken

    def pick(self, name: int, job: Job, now: float) -> int:  # noqa: ARG002  as every router
        """Return the place of the engine that a request goes to."""
        waits, prefills = [], []
        for engine, away in zip(self.engines, self._away, strict=True):
            uncached = job.prompt - engine.hit(job)
            own = engine.hardware.prefilling(uncached, job.prompt)
            capacity = engine.hardware.blocks * BLOCK_TOKENS
            claimed = sum(each.prompt + each.output for each in engine.jobs())
            excess = max(claimed + job.prompt + job.output - 0.95 * capacity, 0.0)
            waits.append(away + engine.wait(queue(engine), now) + excess * self.residence / max(claimed, 1))
            prefills.append(own)
        factor = 1 + min(2.0, *waits)
        costs = [
            (wait + own * (factor + 0.03 * min(len(engine), 64)), len(engine))
            for wait, own, engine in zip(waits, prefills, self.engines, strict=True)
        ]
        return costs.index(min(costs))


def queue(engine: Engine) -> list[tuple[int, int]]:
    """Return the uncached tokens and lengths of the jobs that wait, by what was cached when they came."""
    return [(job.target - (job.hit if job.target == job.prompt else 0), job.target) for job in engine.waiting]


def memory(engine: Engine, job: Job, hit: int) -> float:
    """Return the seconds until a job, and all that wait before it, fit into memory."""
    blocks = ceil(job.prompt / BLOCK_TOKENS) - hit // BLOCK_TOKENS
    blocks += sum(ceil(tokens / BLOCK_TOKENS) for tokens, _ in queue(engine))
    blocks += sum(ceil((each.target - each.computed) / BLOCK_TOKENS) for each in engine.prefilling)
    return engine.wait_for_memory(blocks)
