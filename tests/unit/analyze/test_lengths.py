"""Quantiles in bounded memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.analyze.lengths import Distribution, Spread


def spread(numbers: list[float]) -> Spread:
    """Return the figures of numbers."""
    counted = Distribution()
    for number in numbers:
        counted.add(number)
    return counted.spread()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_quantiles_are_off_by_one_per_cent_at_most(numbers: list[int]) -> None:
    """Against the sorted list."""
    found, ordered = spread(list(numbers)), sorted(numbers)
    assert (found.count, found.smallest, found.largest) == (len(numbers), ordered[0], ordered[-1])
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value == pytest.approx(ordered[int(share * (len(ordered) - 1))], rel=0.0101, abs=1e-6)


def test_nothing_counted_reads_as_nothing() -> None:
    """All figures are zero."""
    assert spread([]) == Spread()


def test_memory_is_bounded() -> None:
    """Numbers over nine decades need about a thousand buckets."""
    counted, generator = Distribution(), random.Random(1)
    for _ in range(50_000):
        counted.add(10 ** (9 * generator.random()))
    assert len(counted) < 1100


def test_bands_hold_every_number_once() -> None:
    """Up to each edge, and behind the last."""
    counted = Distribution()
    for number in (1, 10, 50, 100, 5000):
        counted.add(number)
    assert counted.counts((10, 1000)) == [2, 2, 1]
