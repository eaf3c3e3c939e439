"""KV blocks of a simulated engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sim.fleet.blocks import KvBlocks


def test_a_named_block_outlives_its_user_and_is_found() -> None:
    """A prefix stays visible after the request that computed it has gone."""
    blocks = KvBlocks(4)
    blocks.allocate(2)
    assert blocks.publish(1)
    assert blocks.publish(2)
    blocks.release([1, 2], 0)
    assert blocks.depth([1, 2, 3], 3) == 2
    assert (blocks.used, blocks.available) == (0, 4)


def test_the_tail_of_a_prompt_is_evicted_first() -> None:
    """A prompt given back as a whole loses its end first, so that its beginning can still be of use."""
    journal: list[tuple[bool, int]] = []
    blocks = KvBlocks(3, journal)
    blocks.allocate(3)
    for block in (1, 2, 3):
        blocks.publish(block)
    blocks.release([1, 2, 3], 0)
    blocks.allocate(2)
    assert journal[3:] == [(False, 3), (False, 2)]
    assert blocks.depth([1, 2, 3], 3) == 1


def test_a_second_copy_stays_private() -> None:
    """Of two requests that compute the same block at once, only one block becomes visible."""
    blocks = KvBlocks(2)
    blocks.allocate(2)
    assert blocks.publish(1)
    assert not blocks.publish(1)
    blocks.release([1], 0)
    blocks.release([], 1)
    assert (blocks.private, blocks.used, blocks.available) == (0, 0, 2)


def test_a_shared_block_is_not_evicted() -> None:
    """Blocks in use are not available, and nothing is evicted in vain."""
    blocks = KvBlocks(2)
    blocks.allocate(1)
    blocks.publish(1)
    blocks.release([1], 0)
    blocks.share([1])
    assert blocks.available == 1
    with pytest.raises(MemoryError):
        blocks.allocate(2)
    assert 1 in blocks


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60))
def test_whatever_is_done_blocks_are_neither_lost_nor_made(steps: list[tuple[int, int]]) -> None:
    """Used and available blocks add up to the capacity at every moment, and all come back at the end."""
    blocks = KvBlocks(12)
    held: list[tuple[list[int], int]] = []
    for family, length in steps:
        chain = [family * 10 + place for place in range(length)]
        depth = blocks.depth(chain, length)
        if blocks.needed(chain, depth, length) > blocks.available:
            if held:
                blocks.release(*held.pop(0))
            continue
        blocks.share(chain[:depth])
        blocks.allocate(length - depth)
        named = chain[:depth] + [block for block in chain[depth:] if blocks.publish(block)]
        held.append((named, length - len(named)))
        assert 0 <= blocks.used <= 12
        assert blocks.used + blocks.available == 12
    for named, private in held:
        blocks.release(named, private)
    assert (blocks.used, blocks.private, blocks.available) == (0, 0, 12)
