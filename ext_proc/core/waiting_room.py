"""The waiting room of a pool: its limits, what stands in it, and who gives way when it is full."""

from __future__ import annotations

import msgspec

from ext_proc.core.fair_queue import FairQueue
from ext_proc.core.pace import Pace
from ext_proc.core.promises import Promises
from ext_proc.core.tally import Tally
from ext_proc.core.turn import Turn


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool lets requests wait.

    Attributes:
        requests: that wait at once, at most; 0 lets none wait.
        bytes: that they hold at once, at most.
        wait: seconds that one waits for a place, at most.
        from_zero: seconds that one waits for the first ready endpoint, at most; 0 does not wait for that.
        wake: seconds that one waits for a sleeping engine to be woken, at most; 0 has none woken.
        proof: True if an endpoint that is listed may not listen yet, so that it has to show first that it serves.
        models: that the pool is declared to serve.
        promises: requests that are told when to come back and known again, at most.
        tenants: remembered without a waiting request, at most.
    """

    requests: int = 1000
    bytes: int = 256 * 1024 * 1024
    wait: float = 10.0
    from_zero: float = 0.0
    wake: float = 0.0
    proof: bool = False
    models: frozenset[str] = frozenset()
    promises: int = 20_000
    tenants: int = 1000

    @property
    def cold(self) -> float:
        """Seconds that a request waits while no endpoint is there that serves, at most; 0 does not wait for that."""
        return self.from_zero or self.wake


NO_LIMITS = Limits()


class Fill(msgspec.Struct, frozen=True):
    """How full the waiting room of a pool is; counts, and bytes."""

    requests: int
    bytes: int
    promises: int
    limits: Limits


class Row(FairQueue):
    """Those in a pool who wait for the same endpoints.

    Attributes:
        pool: name of the pool.
        generations: of the endpoints, which unlike slots never pass to others.
    """

    def __init__(self, pool: str, generations: tuple[int, ...], tenants: int) -> None:
        super().__init__(tenants)
        self.pool = pool
        self.generations = generations

    @property
    def is_cold(self) -> bool:
        """Whether there was no ready endpoint when the first was tried last."""
        turn = self.first()
        return turn is not None and turn.cold

    @property
    def rank(self) -> tuple[int, float]:
        """What rows are ordered by: the priority of the first, then how long it waits."""
        turn = self.first()
        return (0, 0.0) if turn is None else (-turn.priority, turn.since)


class Room:
    """What waits in one pool, over all of its rows, and what the pool has promised.

    Attributes:
        limits: its bounds.
        rows: by the generations of their endpoints; none is empty.
        waiting: counts who waits.
        sizes: counts the bytes that they hold.
        bytes: that they hold.
        promises: who was told when to come back.
        pace: how fast places are given.
    """

    def __init__(self, pool: str, limits: Limits) -> None:
        self.limits = limits
        self.rows: dict[tuple[int, ...], Row] = {}
        self.waiting = Tally()
        self.sizes = Tally()
        self.bytes = 0
        self.promises = Promises(limits.promises)
        self.pace = Pace()
        self._pool = pool

    @property
    def fill(self) -> Fill:
        """How full it is."""
        return Fill(len(self.waiting), self.bytes, len(self.promises), self.limits)

    def has_place(self, size: int) -> bool:
        """Tell whether one more of `size` bytes may wait."""
        return len(self.waiting) < self.limits.requests and self.bytes + size <= self.limits.bytes

    def could_hold(self, turn: Turn) -> bool:
        """Tell whether a request might find a place at all; if not, others would give way in vain."""
        _, never_give_way = self.sizes.before(turn.priority + 1)
        return never_give_way + turn.size <= self.limits.bytes

    def enter(self, turn: Turn, generations: tuple[int, ...]) -> None:
        """Let one wait for the endpoints with these generations."""
        row = self.rows.get(generations)
        if row is None:
            row = self.rows[generations] = Row(self._pool, generations, self.limits.tenants)
        row.add(turn)
        self.waiting.add(turn.priority, turn.cost)
        self.sizes.add(turn.priority, turn.size)
        self.bytes += turn.size

    def remove(self, turn: Turn, *, served: bool = False) -> None:
        """Take one out; `served` only for the first of a row."""
        row: Row = turn.row
        if served:
            row.serve(turn)
        else:
            row.leave(turn)
        if not len(row):
            del self.rows[row.generations]
        self.waiting.remove(turn.priority, turn.cost)
        self.sizes.remove(turn.priority, turn.size)
        self.bytes -= turn.size

    def giving_way(self, turn: Turn) -> Turn | None:
        """Return who has less of a claim to wait than one that comes: the latest of the longest line that is lowest."""
        if not self.rows:
            return None
        lowest = min(row.lowest for row in self.rows.values())
        least = (row.last() for row in self.rows.values() if row.lowest == lowest)
        other, standing = max(least, key=lambda last: last[1])
        return other if _yields(other, standing, turn) else None


def _yields(other: Turn, standing: int, turn: Turn) -> bool:
    """Tell whether one that waits, with so many of its tenant, gives its place to one that comes."""
    if other.priority != turn.priority:
        return other.priority < turn.priority
    if other.returned or turn.returned:
        return not other.returned
    return other.tenant != turn.tenant and standing > int(other.row.standing(turn.priority, turn.tenant)) + 1
