"""Who is next of those that wait for the same endpoints: by priority, then fairly among tenants, then by arrival.

Fairness is start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queuing", 1996) by tokens, with a line per
tenant in place of tags per request, so that who leaves is not charged: of two tenants that both have somebody waiting,
neither gets ahead of the other by more than the largest request of each.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush
from operator import neg

from ext_proc.core.turn import Turn

_SPARE = 16


class _Line:
    """Requests of one tenant and priority in order of arrival; who came back as told stands before who is new."""

    __slots__ = ("fresh", "returned", "start", "tenant")

    def __init__(self, tenant: str, start: float) -> None:
        self.tenant = tenant
        self.start = start
        self.returned: OrderedDict[Turn, None] = OrderedDict()
        self.fresh: OrderedDict[Turn, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.returned) + len(self.fresh)

    def first(self) -> Turn:
        return next(iter(self.returned or self.fresh))

    def part(self, turn: Turn) -> OrderedDict[Turn, None]:
        return self.returned if turn.returned else self.fresh


class _Lengths:
    """Lines by how many stand in them, so that the longest is known at once."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[_Line, None]] = {}
        self._longest = 0

    def change(self, line: _Line, before: int, after: int) -> None:
        """Note that a line grew or shrank by one."""
        if before:
            same = self._lines[before]
            del same[line]
            if not same:
                del self._lines[before]
        if after:
            self._lines.setdefault(after, {})[line] = None
        self._longest = max(self._longest, after)
        if self._longest not in self._lines:
            self._longest = max(self._longest - 1, 0)

    def longest(self) -> _Line | None:
        return next(iter(self._lines[self._longest])) if self._longest else None


class _Level:
    """The lines of one priority.

    `clock` is the virtual time: the start of the latest service. `ahead` remembers tenants without a line that had
    more than their share.
    """

    def __init__(self, tenants: int) -> None:
        self.lengths = _Lengths()
        self.lines: dict[str, _Line] = {}
        self._tenants = tenants
        self._clock = 0.0
        self._ahead: OrderedDict[str, float] = OrderedDict()
        self._order: list[tuple[float, int, _Line]] = []
        self._number = 0

    def add(self, turn: Turn) -> None:
        line = self.lines.get(turn.tenant)
        if line is None:
            start = max(self._ahead.pop(turn.tenant, 0.0), self._clock)
            line = self.lines[turn.tenant] = _Line(turn.tenant, start)
            self._enter(line)
        line.part(turn)[turn] = None
        self.lengths.change(line, len(line) - 1, len(line))

    def first(self) -> Turn:
        return self._front().first()

    def serve(self, turn: Turn) -> None:
        """Take the first one out and charge its tenant."""
        line = self._front()
        heappop(self._order)
        self._clock = line.start
        line.start += turn.cost
        self._take(line, turn)
        if line.tenant in self.lines:
            self._enter(line)

    def leave(self, turn: Turn) -> None:
        """Take anyone out."""
        self._take(self.lines[turn.tenant], turn)
        if len(self._order) > 2 * len(self.lines) + _SPARE:
            self._order = [entry for entry in self._order if len(entry[2])]
            heapify(self._order)

    def _take(self, line: _Line, turn: Turn) -> None:
        del line.part(turn)[turn]
        self.lengths.change(line, len(line) + 1, len(line))
        if line:
            return
        del self.lines[line.tenant]
        if line.start > self._clock:
            self._ahead[line.tenant] = line.start
            if len(self._ahead) > self._tenants:
                self._ahead.popitem(last=False)

    def _enter(self, line: _Line) -> None:
        self._number += 1
        heappush(self._order, (line.start, self._number, line))

    def _front(self) -> _Line:
        while not self._order[0][2]:  # everybody left it
            heappop(self._order)
        return self._order[0][2]


class FairQueue:
    """A row of waiting requests; every operation takes logarithmic time in the number of tenants that wait.

    Args:
        tenants: how many tenants are remembered that have nobody waiting, at most.
    """

    def __init__(self, tenants: int = 1000) -> None:
        self._tenants = tenants
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    @property
    def highest(self) -> int:
        """The highest priority that waits."""
        return self._priorities[0]

    @property
    def lowest(self) -> int:
        """The lowest priority that waits."""
        return self._priorities[-1]

    def add(self, turn: Turn) -> None:
        """Let a request wait, behind those of its priority and tenant."""
        level = self._levels.get(turn.priority)
        if level is None:
            level = self._levels[turn.priority] = _Level(self._tenants)
            insort(self._priorities, turn.priority, key=neg)
        level.add(turn)
        turn.row = self
        self._count += 1

    def first(self) -> Turn | None:
        """Return who is next, and let it stand."""
        return self._levels[self._priorities[0]].first() if self._count else None

    def serve(self, turn: Turn) -> None:
        """Take out the one that `first` returned, and charge its tenant."""
        self._levels[turn.priority].serve(turn)
        self._gone(turn)

    def leave(self, turn: Turn) -> None:
        """Take out one that is not served."""
        self._levels[turn.priority].leave(turn)
        self._gone(turn)

    def standing(self, priority: int, tenant: str) -> int:
        """Return how many of a tenant wait with a priority."""
        level = self._levels.get(priority)
        line = level.lines.get(tenant) if level is not None else None
        return 0 if line is None else len(line)

    def last(self) -> tuple[Turn, int]:
        """Return who may wait least, and how many of its tenant wait: the latest of the longest line that is lowest."""
        line = self._levels[self.lowest].lengths.longest()
        assert line is not None  # noqa: S101  a level without lines is dropped
        return next(reversed(line.fresh or line.returned)), len(line)

    def _gone(self, turn: Turn) -> None:
        turn.row = None
        self._count -= 1
        if not self._levels[turn.priority].lines:
            # Nobody of this priority waits, so nobody has a claim to be compared with.
            del self._levels[turn.priority]
            self._priorities.remove(turn.priority)
