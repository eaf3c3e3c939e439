"""The hash ring."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.ring import Ring

KEYS = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(2000)]
MEMBERS = st.sets(st.integers(0, 99).map(str), min_size=1, max_size=20)


def _ring(*members: str) -> Ring:
    ring = Ring(100)
    ring.cover(members)
    return ring


def _owners(ring: Ring, among: set[str]) -> list[str]:
    return [next(member for member in ring.walk(key) if member in among) for key in KEYS]


@given(MEMBERS, st.integers(0, 2**64 - 1))
def test_a_walk_meets_every_member_once(members: set[str], key: int) -> None:
    """Whatever the key, all members come, none of them twice."""
    assert sorted(_ring(*members).walk(key)) == sorted(members)


@given(MEMBERS, st.integers(0, 2**64 - 1))
def test_the_order_does_not_depend_on_how_the_ring_grew(members: set[str], key: int) -> None:
    """Members that came one by one stand where they would have stood from the start."""
    grown = Ring(100)
    for count in range(1, len(members) + 1):
        grown.cover(list(members)[:count])
    assert list(grown.walk(key)) == list(_ring(*sorted(members)).walk(key))


def test_keys_are_shared_out_about_evenly() -> None:
    """With 100 points each, nobody's share is far from the mean."""
    shares = Counter(next(_ring(*"abcdefgh").walk(key)) for key in KEYS)
    assert all(0.6 * 250 < share < 1.5 * 250 for share in shares.values())


def test_only_the_keys_of_a_member_that_leaves_move() -> None:
    """About one key in eight moves, and all that move were those of the one that left."""
    ring, left = _ring(*"abcdefgh"), set("abcdefg")
    before, after = _owners(ring, set("abcdefgh")), _owners(ring, left)
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"h"}
    assert len(moved) / len(KEYS) < 1.5 / 8
    assert after == _owners(_ring(*left), left)


def test_members_that_are_long_gone_are_forgotten() -> None:
    """A fleet whose addresses change all the time does not make the ring grow for ever."""
    ring = Ring(1000)
    for generation in range(30):
        ring.cover([f"{generation}-{number}" for number in range(8)])
        assert len(ring._positions) == 1000 * len(ring._members) <= 100_000
    assert list(ring.walk(7)) == list(ring.walk(7))
    assert {f"29-{number}" for number in range(8)} <= set(ring.walk(7))


def test_a_fleet_beyond_the_bound_is_held_whole() -> None:
    """However many candidates there are, all of them are on the ring."""
    ring = Ring(1000)
    members = [str(number) for number in range(250)]
    ring.cover(members)
    assert ring._members == set(members)


def test_candidates_that_alternate_need_no_new_ring() -> None:
    """Once the endpoints of four models have been seen, requests for any of them find the ring as it is."""
    ring = Ring(100)
    models = [[f"{model}-{number}" for number in range(100)] for model in range(4)]
    for members in models:
        ring.cover(members)
    positions = ring._positions
    for members in models:
        ring.cover(members)
        assert ring._positions is positions


def test_a_copy_is_cheap_and_leaves_no_trace() -> None:
    """A deep copy shares the points, and what it takes in later is its own."""
    ring = _ring(*"abcd")
    twin = copy.deepcopy(ring)
    assert twin._positions is ring._positions
    twin.cover("efgh")
    assert (sorted(ring.walk(1)), sorted(twin.walk(1))) == (list("abcd"), list("abcdefgh"))


def test_a_ring_that_holds_all_is_left_alone() -> None:
    """Fewer candidates need no new ring."""
    ring = _ring(*"abcd")
    positions = ring._positions
    ring.cover("bc")
    assert ring._positions is positions
    assert len(list(islice(ring.walk(1), 9))) == 4
