"""Reuse distances against hand-made figures and a plain LRU cache."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from ext_proc.analyze.curve import ReuseCurve
from ext_proc.analyze.lru import PrefixCache
from ext_proc.analyze.tree import SumTree

SIZES = [100, 200, 300, 400, 800, 1600, 100_000]

# A prompt is a path in a tree: its numbers say which branch is taken at each step.
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=60)


def chain_of(path: list[int], seed: int = 7) -> tuple[list[int], list[int]]:
    """Name each beginning of a path by a number, and give the blocks sizes that grow along the path."""
    blocks = [xxh3_64_intdigest(repr(path[: end + 1]).encode(), seed) for end in range(len(path))]
    return blocks, [(50, 50, 100, 100, 300, 700)[place] for place in range(len(path))]


def random_paths(seed: int, count: int) -> list[list[int]]:
    """Make prompts of which some are hot and many are new."""
    generator = random.Random(seed)
    made: list[list[int]] = []
    for number in range(count):
        if made and generator.random() < 0.5:
            path = generator.choice(made[-300:])[:4]
        else:
            path = [int(generator.paretovariate(0.6)) % 5000, number % 3]
        made.append([*path, *(generator.randrange(2) for _ in range(6 - len(path)))])
    return made


def test_ratios_of_a_stream_worked_out_by_hand() -> None:
    """A, B, A again with B's 200 tokens in between: A hits from 300 tokens on, its second block from 400."""
    curve = ReuseCurve(SIZES)
    for chain in ([1, 2], [3, 4], [1, 2]):
        curve.use(chain, [100, 100], 250)
    # 750 tokens in all; of the third prompt 100 have distance 300, 100 have 400, 50 are in no whole block.
    assert curve.reuse_ratio() == pytest.approx(200 / 750)
    assert curve.hit_ratios() == pytest.approx([0, 0, 100 / 750, 200 / 750, 200 / 750, 200 / 750, 200 / 750])
    assert curve.working_set() == 400
    assert curve.rate == 1.0


def test_new_tokens_of_each_prompt_are_returned() -> None:
    """The second of two equal prompts has only its rest left to compute."""
    curve = ReuseCurve(SIZES)
    assert curve.use([1, 2], [100, 100], 230) == 230
    assert curve.use([1, 2], [100, 100], 230) == 30
    assert curve.use([1, 5], [100, 100], 200) == 100


def test_nothing_used_reads_as_no_reuse() -> None:
    """Ratios of nothing are zero, not an error."""
    curve = ReuseCurve(SIZES)
    assert curve.reuse_ratio() == 0
    assert curve.hit_ratios() == [0] * len(SIZES)


@given(PATHS)
def test_every_size_equals_a_cache_of_that_size(paths: list[list[int]]) -> None:
    """One pass gives what running one LRU cache per size would."""
    curve = ReuseCurve(SIZES)
    caches = [PrefixCache(size) for size in SIZES]
    hits, total = [0] * len(SIZES), 0
    for path in paths:
        chain, sizes = chain_of(path)
        curve.use(chain, sizes, sum(sizes))
        total += sum(sizes)
        for place, cache in enumerate(caches):
            hits[place] += sum(sizes[: cache.held(chain)])
            cache.use(chain, sizes)
    assert curve.hit_ratios() == pytest.approx([hit / total if total else 0 for hit in hits])


@given(PATHS)
def test_ratios_grow_with_size_up_to_the_reuse_ratio(paths: list[list[int]]) -> None:
    """A larger cache never hits less, and none more than an endless one."""
    curve = ReuseCurve(SIZES)
    for path in paths:
        chain, sizes = chain_of(path)
        curve.use(chain, sizes, sum(sizes))
    ratios = curve.hit_ratios()
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(curve.reuse_ratio())


@pytest.mark.parametrize("seed", range(6))
def test_sampling_costs_a_few_hundredths_at_most(seed: int) -> None:
    """With a thousand blocks tracked, a fifth of all, the curve stays near the exact one."""
    sizes = [2**step for step in range(10, 24)]
    exact, sampled = ReuseCurve(sizes), ReuseCurve(sizes, tracked=1000)
    for path in random_paths(seed, 6000):
        chain, tokens = chain_of(path, seed)
        for curve in (exact, sampled):
            curve.use(chain, tokens, sum(tokens))
    assert exact.rate == 1.0
    assert sampled.rate < 0.25
    assert len(sampled) <= 1000
    assert sampled.reuse_ratio() == pytest.approx(exact.reuse_ratio(), abs=0.03)
    errors = [abs(one - other) for one, other in zip(sampled.hit_ratios(), exact.hit_ratios(), strict=True)]
    # The first sizes do not even hold the hottest prompts, so that the luck of a few blocks counts.
    assert max(errors) < 0.12
    assert statistics.mean(errors[8:]) < 0.02
    assert sampled.working_set() == pytest.approx(exact.working_set(), rel=0.1)


def test_places_are_numbered_anew_when_they_run_out() -> None:
    """Few blocks used very often do not need room for each use, and stay exact."""
    curve, cache, hits = ReuseCurve([250], tracked=8), PrefixCache(250), 0
    generator = random.Random(1)
    for _ in range(500):
        chain = [generator.randrange(4)]
        hits += 100 * cache.held(chain)
        cache.use(chain, [100])
        curve.use(chain, [100], 100)
    assert curve.rate == 1.0
    assert curve.hit_ratio(250) == pytest.approx(hits / 50_000)


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(-5, 9)), max_size=40), st.lists(st.integers(0, 9), max_size=16)
)
def test_the_tree_sums_as_a_list_does(changes: list[tuple[int, int]], start: list[int]) -> None:
    """Every prefix sum is right after any changes."""
    tree, plain = SumTree(16), [*start, *[0] * (16 - len(start))]
    tree.fill(start)
    for place, number in changes:
        tree.add(place, number)
        plain[place] += number
    assert [tree.sum_to(place) for place in range(16)] == [sum(plain[: place + 1]) for place in range(16)]
    assert tree.total == sum(plain)
