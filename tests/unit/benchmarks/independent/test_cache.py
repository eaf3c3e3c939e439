"""The KV cache of the independent simulator's engines."""

from __future__ import annotations

from benchmarks.independent.cache import BlockCache, Change, Holding, Run


def filled(cache: BlockCache, runs: tuple[Run, ...]) -> Holding:
    """Let a sequence take and fill all blocks of these runs that are not there."""
    blocks = sum(run.blocks for run in runs)
    hit, pieces = cache.match(runs, blocks)
    holding = cache.hold(pieces, hit)
    assert cache.take(blocks - hit)
    holding.private = blocks - hit
    cache.fill(holding, runs, blocks)
    return holding


def test_prefix_is_found() -> None:
    """Blocks that were filled are found by whoever has the same beginning, and by nobody else."""
    cache = BlockCache(10)
    cache.free(filled(cache, (Run(1, 4),)))
    assert cache.match((Run(1, 4), Run(9, 2)), 6)[0] == 4
    assert cache.match((Run(1, 4),), 3)[0] == 3
    assert cache.match((Run(9, 2), Run(1, 4)), 6)[0] == 0


def test_tail_goes_first() -> None:
    """Of the sequence that was used least recently, the last blocks are given up first."""
    cache = BlockCache(8)
    cache.free(filled(cache, (Run(1, 4),)))
    cache.free(filled(cache, (Run(11, 4),)))
    cache.changes.clear()
    assert cache.take(3)
    assert cache.changes == [Change(2, 5, stored=False)]
    assert cache.match((Run(1, 4),), 4)[0] == 1
    assert cache.match((Run(11, 4),), 4)[0] == 4


def test_later_runs_go_before_earlier_ones() -> None:
    """Of a sequence of several runs the last one is given up first."""
    cache = BlockCache(8)
    cache.free(filled(cache, (Run(1, 4), Run(11, 4))))
    assert cache.take(4)
    assert cache.match((Run(1, 4), Run(11, 4)), 8)[0] == 4


def test_use_makes_recent() -> None:
    """What is used again is given up after what is not."""
    cache = BlockCache(8)
    cache.free(filled(cache, (Run(1, 4),)))
    cache.free(filled(cache, (Run(11, 4),)))
    cache.free(filled(cache, (Run(1, 4),)))
    assert cache.take(4)
    assert cache.match((Run(1, 4),), 4)[0] == 4
    assert cache.match((Run(11, 4),), 4)[0] == 0


def test_what_is_held_stays() -> None:
    """A block with a user is never given up: there are not so many others."""
    cache = BlockCache(8)
    holding = filled(cache, (Run(1, 4),))
    assert not cache.take(5)
    assert cache.take(4)
    assert cache.match((Run(1, 4),), 4)[0] == 4
    assert cache.used == 8
    cache.free(holding)
    assert cache.used == 4


def test_missing_tail_is_filled_again() -> None:
    """A run of which only the beginning is left is found whole once somebody has computed the rest."""
    cache = BlockCache(8)
    cache.free(filled(cache, (Run(1, 6),)))
    holding = Holding((), 0)
    assert cache.take(4)
    holding.private = 4
    assert cache.match((Run(1, 6),), 6)[0] == 4
    cache.free(holding)
    cache.free(filled(cache, (Run(1, 6),)))
    assert cache.match((Run(1, 6),), 6)[0] == 6
