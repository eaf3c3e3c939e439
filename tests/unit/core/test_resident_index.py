"""What engines report of their caches."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.resident_index import MixedIndex, ResidentIndex

CHAIN = [11, 12, 13, 14, 15, 16]


def test_an_engine_holds_what_it_reports() -> None:
    """Stored blocks are held, removed ones are not, and each engine has its own."""
    index = ResidentIndex()
    for slot in (0, 1):
        index.add(slot)
    index.stored(0, CHAIN[:4])
    index.stored(1, CHAIN)
    index.removed(0, [14])
    assert index.depths(CHAIN, [0, 1]) == [3, 6]


def test_a_copy_that_is_left_still_counts() -> None:
    """A block that an engine holds twice is gone only when both copies are."""
    index = ResidentIndex()
    index.add(0)
    index.stored(0, CHAIN[:1])
    index.stored(0, CHAIN[:1])
    index.removed(0, CHAIN[:1])
    assert index.depths(CHAIN, [0])[0] == 1
    index.removed(0, CHAIN[:1])
    assert (index.depths(CHAIN, [0])[0], index.blocks(0)) == (0, 0)


def test_a_cleared_engine_holds_nothing_and_goes_on_reporting() -> None:
    """After a restart an engine begins anew."""
    index = ResidentIndex()
    index.add(0)
    index.stored(0, CHAIN)
    index.cleared(0)
    assert index.depths(CHAIN, [0])[0] == 0
    index.stored(0, CHAIN[:2])
    assert index.depths(CHAIN, [0])[0] == 2


def test_reports_of_unknown_engines_are_ignored() -> None:
    """Whatever comes late of an engine that is gone leaves no trace."""
    index = ResidentIndex()
    for report in (index.stored, index.removed):
        report(7, CHAIN)
    index.cleared(7)
    index.remove(7)
    assert (7 in index, index.depths(CHAIN, [7])[0], index.blocks(7)) == (False, None, 0)


REPORTS = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=30)


@given(REPORTS)
def test_counts_follow_every_order_of_reports(reports: list[tuple[bool, int]]) -> None:
    """Whatever the order of prefixes stored and tails removed, the depth is that of the copies left."""
    index, copies = ResidentIndex(), Counter[int]()
    index.add(0)
    for stores, depth in reports:
        if stores:
            index.stored(0, CHAIN[:depth])
            copies.update(CHAIN[:depth])
        else:  # an engine frees the end of a prompt first
            index.removed(0, CHAIN[depth - 1 :])
            copies = copies - Counter(CHAIN[depth - 1 :])
    held = next((place for place, block in enumerate(CHAIN) if not copies[block]), len(CHAIN))
    assert index.depths(CHAIN, [0])[0] == held


def test_reports_outrank_our_own_history() -> None:
    """Where an engine reports, its reports count and our own history is not corrected; elsewhere history does."""
    observed, resident = ObservedIndex(lambda blocks: 10 * blocks), ResidentIndex()
    mixed = MixedIndex(observed, resident)
    for slot in (0, 1):
        observed.add(slot, 1000)
        mixed.learn(slot, CHAIN[:4])
    resident.add(1)
    resident.stored(1, CHAIN[:2])
    assert mixed.depths(CHAIN, [0, 1, 2]) == [4, 2, 0]
    stamp = mixed.learn(1, CHAIN, 2)
    assert observed.depths(CHAIN, [1]) == [6]
    mixed.forget(1, CHAIN, 4, stamp)
    assert observed.depths(CHAIN, [1]) == [4]
    for slot in (0, 1):
        mixed.correct(slot, 100, 0, 100)
    assert (observed.capacity(0), observed.capacity(1)) == (900, 1000)
