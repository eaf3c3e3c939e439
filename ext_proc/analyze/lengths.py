"""Quantiles of positive numbers in bounded memory: counts in buckets that each span two per cent.

A quantile is off by one per cent at most (the idea of DDSketch, Masson et al., VLDB 2019).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

_STEP = math.log(1.02)
_SMALLEST = 1e-6


class Spread(msgspec.Struct, frozen=True):
    """How numbers are spread; all zero where there are none.

    Attributes:
        count: How many there are.
        mean: Their mean.
        smallest: The smallest.
        p50: The median.
        p90: 90 per cent are no larger.
        p99: 99 per cent are no larger.
        largest: The largest.
    """

    count: int = 0
    mean: float = 0.0
    smallest: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    largest: float = 0.0


class Distribution:
    """Counts numbers of zero and above."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._sum = 0.0
        self._smallest = math.inf
        self._largest = 0.0

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, number: float) -> None:
        """Count a number."""
        self._buckets[round(math.log(max(number, _SMALLEST)) / _STEP)] += 1
        self._count += 1
        self._sum += number
        self._smallest = min(self._smallest, number)
        self._largest = max(self._largest, number)

    def spread(self) -> Spread:
        """Return the figures."""
        if not self._count:
            return Spread()
        p50, p90, p99 = self._quantiles((0.5, 0.9, 0.99))
        return Spread(self._count, self._sum / self._count, self._smallest, p50, p90, p99, self._largest)

    def counts(self, edges: Iterable[float]) -> list[int]:
        """Return how many numbers lie up to each edge, and behind the last."""
        limits = [*edges, math.inf]
        found = [0] * len(limits)
        for bucket, count in self._buckets.items():
            number = self._number(bucket)
            found[next(place for place, limit in enumerate(limits) if number <= limit)] += count
        return found

    def _quantiles(self, shares: tuple[float, ...]) -> list[float]:
        ranks = [share * (self._count - 1) for share in shares]
        found: list[float] = []
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            while len(found) < len(ranks) and ranks[len(found)] < passed:
                found.append(self._number(bucket))
        return found

    def _number(self, bucket: int) -> float:
        return min(max(math.exp(bucket * _STEP), self._smallest), self._largest)
