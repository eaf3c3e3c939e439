"""A ring for consistent hashing: who comes first behind a key stays the same for most keys when members change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from copy import copy
from itertools import chain, islice
from typing import Self

from xxhash import xxh3_64_intdigest

_MOST_POINTS = 100_000
"""Points up to which a ring forgets nobody: a thousand members of the usual hundred."""


class Ring:
    """Members at many points each of a circle of 64-bit numbers.

    It may hold more members than are wanted at the moment: passing those over is the same as taking them away, and
    costs no new ring when one is ejected and comes back.

    Args:
        points: points of each member; more of them share the keys out more evenly.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._members: frozenset[str] = frozenset()
        self._positions: list[int] = []
        self._owners: dict[int, str] = {}

    def cover(self, members: Collection[str]) -> None:
        """Make sure that the ring holds the members; all others leave when it has grown very large."""
        if self._members.issuperset(members):
            return
        union = self._members.union(members)
        # Requests for different models have different candidates: a bound that grew with those alone would be
        # overstepped by turns, and cost a new ring each time.
        if len(union) * self._points > max(_MOST_POINTS, 2 * len(members) * self._points):
            union, self._members, self._positions, self._owners = frozenset(members), frozenset(), [], {}
        came = {
            xxh3_64_intdigest(f"{member}#{number}".encode()): member
            for member in union - self._members
            for number in range(self._points)
        }
        # Made anew, never altered: copies share them.
        self._owners = self._owners | came
        self._positions = sorted([*self._positions, *sorted(came)])  # two runs, which merge in one go
        self._members = union

    def __deepcopy__(self, _memo: object) -> Self:
        """Return a ring that shares the points until one of the two takes in others."""
        return copy(self)

    def walk(self, key: int) -> Iterator[str]:
        """Yield every member once, in the order in which they come behind the key."""
        positions, owners = self._positions, self._owners
        start = bisect_left(positions, key)
        seen: set[str] = set()
        for point in chain(islice(positions, start, None), islice(positions, start)):
            owner = owners[point]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == len(self._members):
                    return
