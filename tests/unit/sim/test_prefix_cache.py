"""The engine's KV memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sim.prefix_cache import Holding, PrefixCache


def run(cache: PrefixCache, chain: list[int], blocks: int | None = None) -> Holding:
    """Acquire and compute a chain."""
    hits = cache.match(chain, len(chain))
    holding = cache.acquire(chain, hits, blocks or len(chain))
    assert holding is not None
    cache.commit(holding, chain[hits:])
    return holding


def test_computed_blocks_are_found_as_long_as_they_match_from_the_start() -> None:
    """A match ends at the first block that is not cached."""
    cache = PrefixCache(10)
    run(cache, [1, 2, 3])
    assert [cache.match(chain, 9) for chain in ([1, 2, 3, 4], [1, 2, 9], [9, 2, 3])] == [3, 2, 0]


def test_a_match_can_be_limited() -> None:
    """A match is never longer than asked for."""
    cache = PrefixCache(10)
    run(cache, [1, 2, 3])
    assert cache.match([1, 2, 3], 2) == 2


def test_idle_blocks_are_found_but_do_not_count_as_used() -> None:
    """Usage is about running sequences only, as vLLM reports it."""
    cache = PrefixCache(10)
    cache.release(run(cache, [1, 2, 3], blocks=5))
    assert (cache.used, cache.cached, cache.match([1, 2, 3], 9)) == (0, 3, 3)


def test_the_tail_of_a_freed_sequence_is_evicted_first() -> None:
    """Prefixes survive longest."""
    cache = PrefixCache(4)
    cache.release(run(cache, [1, 2, 3]))
    run(cache, [7, 8])
    assert cache.match([1, 2, 3], 9) == 2


def test_the_least_recently_used_sequence_is_evicted_first() -> None:
    """Using a prefix again protects it."""
    cache = PrefixCache(4)
    for chain in ([1, 2], [3, 4], [1, 2]):
        cache.release(run(cache, chain))
    run(cache, [5, 6])
    assert (cache.match([1, 2], 9), cache.match([3, 4], 9)) == (2, 0)


def test_blocks_in_use_are_never_evicted() -> None:
    """Without idle blocks there is no room, and asking for it changes nothing."""
    cache = PrefixCache(4)
    holding = run(cache, [1, 2, 3])
    assert cache.acquire([8, 9], 0, 2) is None
    assert not cache.grow(holding, 2)
    assert (cache.used, cache.match([1, 2, 3], 9)) == (3, 3)


def test_a_shared_block_is_freed_with_its_last_user() -> None:
    """Two sequences with one prefix use its blocks once."""
    cache = PrefixCache(10)
    first, second = run(cache, [1, 2]), run(cache, [1, 2])
    assert cache.used == 2
    cache.release(first)
    assert cache.used == 2
    cache.release(second)
    assert cache.used == 0


def test_siblings_that_compute_the_same_block_hold_a_copy_each() -> None:
    """A block that is cached already stays private to the sequence that computed it again."""
    cache = PrefixCache(10)
    first, second = cache.acquire([1], 0, 1), cache.acquire([1], 0, 1)
    assert first is not None
    assert second is not None
    cache.commit(first, [1])
    cache.commit(second, [1])
    assert (cache.used, cache.cached, second.private) == (2, 1, 1)


def test_clearing_forgets_idle_blocks_only() -> None:
    """Running sequences keep their blocks when the cache is reset."""
    cache = PrefixCache(10)
    cache.release(run(cache, [1]))
    run(cache, [2])
    cache.clear()
    assert (cache.match([1], 1), cache.match([2], 1)) == (0, 1)


chains = st.integers(0, 3).flatmap(
    lambda family: st.integers(1, 6).map(lambda length: [family * 100 + place for place in range(length)])
)


@given(st.lists(chains, max_size=30))
def test_passing_through_leaves_what_a_whole_life_leaves(sequences: list[list[int]]) -> None:
    """The short way through the cache keeps and evicts the same blocks as the long one."""
    short, long = PrefixCache(8), PrefixCache(8)
    for chain in sequences:
        assert short.pass_through(chain, len(chain))
        long.release(run(long, chain))
        assert short.cached == long.cached
        assert [short.match(one, 6) for one in sequences] == [long.match(one, 6) for one in sequences]


@given(st.lists(st.tuples(chains, st.sampled_from(["keep", "release", "pass", "drop"])), max_size=40))
def test_memory_is_never_overcommitted_and_never_lost(steps: list[tuple[list[int], str]]) -> None:
    """Whatever happens, all blocks fit into the capacity, and all are free when nobody holds any."""
    cache, held = PrefixCache(12), list[Holding]()
    for chain, what in steps:
        if what == "drop" and held:
            cache.release(held.pop())
        elif what == "pass":
            cache.pass_through(chain, len(chain) + 1)
        elif holding := cache.acquire(chain, hits := cache.match(chain, 6), len(chain) + 1):
            cache.commit(holding, chain[hits:])
            held.append(holding)
            if what == "release":
                cache.release(held.pop())
        assert 0 <= cache.used <= 12
        assert cache.cached + sum(holding.private for holding in held) <= 12
    for holding in held:
        cache.release(holding)
    assert (cache.used, cache.available) == (0, 12)
