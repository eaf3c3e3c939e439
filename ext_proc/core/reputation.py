"""Reputation: how well each endpoint answered lately, as one score in [0, 1] of success, speed and health.

For endpoint j of a row of peers, all of which serve the model in question:

    success_j = mean of good (1) and ill (0) endings, each weighing a tenth less than the next
    l_j       = seconds per generated token, over about the last ten answers
    speed_j   = min(1, median of l / l_j)                  1 where l_j is unknown
    w_j       = 2 ** (-age / 120 s)                        0 for an endpoint nothing is known of
    neutral   = sum(w * success * speed) / sum(w)          1 if nothing is known of anybody
    score_j   = (w_j * success_j * speed_j + (1 - w_j) * neutral) * health_j
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp2, fsum
from operator import mul
from statistics import median
from types import MappingProxyType

import msgspec

from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import HealthState
from ext_proc.core.model import ILLNESS, Ending, Endpoint

_MEMORY = 0.9
_MOST_WAITING = 32
_HALF_LIFE = 120.0
_HEALTH: Mapping[HealthState, float] = MappingProxyType(
    {
        HealthState.READY: 1.0,
        HealthState.DEGRADED: 0.7,
        HealthState.PROBING: 0.5,
        HealthState.WARMING: 1.0,
        HealthState.EJECTED: 0.1,
    }
)


class _Record(msgspec.Struct, gc=False):
    generation: int
    at: float
    success: float = 1.0
    seconds: float = 0.0
    tokens: float = 0.0
    latency: float | None = None


class Reputations:
    """What outcomes say of every endpoint, by slot; a successor in the slot inherits nothing.

    It is worked out when somebody asks, or when some outcomes have gathered: by the dozen they take half the time.

    Args:
        health: the states that weigh on the score.
    """

    def __init__(self, health: HealthMonitor | None = None) -> None:
        self._health = health or HealthMonitor()
        self._records: dict[int, _Record] = {}
        self._waiting: list[tuple[Endpoint, Ending, float, float, int | None]] = []

    def note(
        self, endpoint: Endpoint, ending: Ending, now: float, *, seconds: float = 0.0, tokens: int | None = None
    ) -> None:
        """Learn from how an attempt at the endpoint ended; endings that say nothing of the engine are passed over.

        Args:
            endpoint: who was tried.
            ending: how it ended.
            now: monotonic seconds.
            seconds: how long the whole exchange took.
            tokens: how many tokens were generated; None if that is not known.
        """
        self._waiting.append((endpoint, ending, now, seconds, tokens))
        if len(self._waiting) >= _MOST_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Learn from the outcomes that wait for it, in their order."""
        waiting, self._waiting = self._waiting, []
        for endpoint, ending, now, seconds, tokens in waiting:
            ill = ending in ILLNESS
            if ill or ending is Ending.OK:
                _learn(self._record(endpoint, now), ill=ill, now=now, seconds=seconds, tokens=tokens or 0)

    def _record(self, endpoint: Endpoint, now: float) -> _Record:
        record = self._records.get(endpoint.slot)
        if record is None or record.generation != endpoint.generation:
            record = self._records[endpoint.slot] = _Record(endpoint.generation, now)
        return record

    def latencies(self, candidates: Sequence[Endpoint]) -> list[float | None]:
        """Return the seconds per generated token of each candidate; None where they are not known."""
        records = self._known(candidates)
        return [None if record is None else record.latency for record in records]

    def scores(self, candidates: Sequence[Endpoint], now: float) -> list[float]:
        """Return the score of each candidate, relative to the others; `now` in monotonic seconds."""
        records = self._known(candidates)
        latencies = [latency for record in records if record is not None and (latency := record.latency) is not None]
        usual = median(latencies) if latencies else 0.0
        weights = [0.0 if record is None else _weight(now - record.at) for record in records]
        values = [1.0 if record is None else record.success * _speed(record.latency, usual) for record in records]
        total = fsum(weights)
        neutral = fsum(map(mul, weights, values)) / total if total > 0 else 1.0
        scores = [neutral + weight * (value - neutral) for weight, value in zip(weights, values, strict=True)]
        if self._health.all_ready:
            return scores
        state = self._health.state
        return [score * _HEALTH[state(endpoint.slot)] for score, endpoint in zip(scores, candidates, strict=True)]

    def _known(self, candidates: Sequence[Endpoint]) -> list[_Record | None]:
        if self._waiting:
            self._catch_up()
        get = self._records.get
        return [
            record if (record := get(endpoint.slot)) and record.generation == endpoint.generation else None
            for endpoint in candidates
        ]


def _learn(record: _Record, *, ill: bool, now: float, seconds: float, tokens: int) -> None:
    record.at = now
    record.success += (1 - _MEMORY) * ((not ill) - record.success)
    if not ill and tokens and seconds > 0:
        record.seconds = _MEMORY * record.seconds + seconds
        record.tokens = _MEMORY * record.tokens + tokens
        record.latency = record.seconds / record.tokens or None


def _speed(latency: float | None, usual: float) -> float:
    return 1.0 if latency is None or latency <= usual else usual / latency


def _weight(age: float) -> float:
    return exp2(-age / _HALF_LIFE) if age > 0 else 1.0
