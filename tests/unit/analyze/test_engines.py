"""Simple policies over caches of engines."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.analyze import engines
from ext_proc.analyze.engines import AFFINITY, ONE_CACHE, RANDOM, ROUND_ROBIN, Comparison
from ext_proc.analyze.lru import PrefixCache


def ratios(comparison: Comparison) -> dict[str, float]:
    """Return the hit ratio of each policy."""
    return {result.policy: result.hit_ratio for result in comparison.results()}


def conversations(count: int, turns: int, seed: int = 0) -> list[list[int]]:
    """Make the requests of conversations that take turns in random order."""
    generator = random.Random(seed)
    blocks = [[generator.getrandbits(64) for _ in range(2 * turns)] for _ in range(count)]
    order = [number for number in range(count) for _ in range(turns)]
    generator.shuffle(order)
    turn = [0] * count
    made = []
    for number in order:
        turn[number] += 1
        made.append(blocks[number][: 2 * turn[number]])
    return made


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=60), st.integers(1, 12))
def test_the_cache_equals_a_naive_one(paths: list[list[int]], capacity: int) -> None:
    """Held blocks are those of a list that is searched and cut the plain way."""
    cache, naive = PrefixCache(capacity * 10), []
    for path in paths:
        chain = [hash((3, *path[: end + 1])) for end in range(len(path))]
        held = len(list(itertools.takewhile(naive.__contains__, chain)))
        assert cache.held(chain) == held
        cache.use(chain, [10] * len(chain))
        naive = [*chain, *(block for block in naive if block not in chain)][:capacity]
        assert len(cache) == len(naive)
        assert cache.tokens == 10 * len(naive)


def test_round_robin_by_hand() -> None:
    """Two engines and three equal prompts: the third is the first that its engine knows."""
    comparison = Comparison(2, 1000, 100)
    for _ in range(3):
        comparison.serve([1, 2], [100, 100], 220)
    found = ratios(comparison)
    assert found[ROUND_ROBIN] == pytest.approx(200 / 660)
    assert found[AFFINITY] == found[ONE_CACHE] == pytest.approx(400 / 660)
    assert comparison.prefill_saved() == pytest.approx(1 - 260 / 460)


def test_affinity_wins_where_conversations_grow() -> None:
    """It comes near the one shared cache, and far above policies that know nothing."""
    comparison = Comparison(8, 4000, 100)
    for chain in conversations(200, 8):
        comparison.serve(chain, [100] * len(chain), 100 * len(chain))
    found = ratios(comparison)
    assert found[AFFINITY] > 2 * found[ROUND_ROBIN]
    assert found[AFFINITY] > 0.75 * found[ONE_CACHE]
    assert found[RANDOM] == pytest.approx(found[ROUND_ROBIN], abs=0.1)


def test_a_hot_prefix_does_not_collapse_on_one_engine() -> None:
    """What all requests share is computed once per engine, and new work is spread."""
    comparison, generator = Comparison(4, 100_000, 100), random.Random(2)
    for _ in range(400):
        chain = [1, 2, 3, generator.getrandbits(64)]
        comparison.serve(chain, [100] * 4, 400)
    (result,) = [result for result in comparison.results() if result.policy == AFFINITY]
    assert result.imbalance < 1.3
    assert result.hit_ratio == pytest.approx(0.75, abs=0.02)


def test_miniature_caches_tell_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled caches of a twelfth of the size give ratios within a few hundredths."""
    whole = Comparison(4, 20_000, 100)
    monkeypatch.setattr(engines, "_MOST_BLOCKS", 270)
    small = Comparison(4, 20_000, 100)
    assert small.rate == pytest.approx(270 / 3200)
    for chain in conversations(1500, 6):
        for comparison in (whole, small):
            comparison.serve(chain, [100] * len(chain), 100 * len(chain) + 20)
    for policy, ratio in ratios(whole).items():
        assert ratios(small)[policy] == pytest.approx(ratio, abs=0.05)


def test_nothing_served_reads_as_nothing() -> None:
    """Ratios of nothing are zero, not an error."""
    assert set(ratios(Comparison(2, 1000, 100)).values()) == {0.0}
    assert Comparison(2, 1000, 100).prefill_saved() == 0.0
