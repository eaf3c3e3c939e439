"""A ring for consistent hashing: who comes first behind a key stays the same for most keys when members change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import chain, islice

from xxhash import xxh3_64_intdigest

_SPARE = 64


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
        """Make sure that the ring holds the members; those that are long gone leave when others come."""
        if self._members.issuperset(members):
            return
        union = self._members.union(members)
        wanted = union if len(union) <= 2 * len(members) + _SPARE else frozenset(members)
        self._owners = {point: owner for point, owner in self._owners.items() if owner in wanted}
        for member in wanted - self._members:
            self._owners.update((xxh3_64_intdigest(f"{member}#{n}".encode()), member) for n in range(self._points))
        self._positions = sorted(self._owners)
        self._members = wanted

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
