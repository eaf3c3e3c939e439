"""Slow start: how large a share of the decisions a new or returning endpoint is a candidate of, and in which.

    ramp  = 0.2 + 0.8 * age / slow_start                 from a fifth to all of it
    share = ramp * min(1, 2 / candidates)                at most twice what is fair, until the start is over

A decision has at most one endpoint, or one group where there are many, that starts slowly among its candidates. So
there are only as many rows of candidates as there are groups, each made once, and a decision costs one random number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from ext_proc.core.candidates import Candidates
from ext_proc.core.generator import Generator
from ext_proc.core.model import Endpoint

_FIRST = 0.2
_FAIR = 2.0
_GROUPS = 32
_STEP = 0.25
"""Seconds for which shares are not computed anew."""

THROTTLED = 0.1
"""Ramp of an endpoint that would be ejected if the policy allowed another one."""


def ramp(since: float, now: float, lasts: float) -> float:
    """Return how far a slow start has come, in [0.2, 1].

    Args:
        since: when it began; infinite if its clock does not run yet.
        now: monotonic seconds.
        lasts: seconds that it takes.
    """
    if lasts <= 0:
        return 1.0
    return min(_FIRST + (1 - _FIRST) * max(now - since, 0.0) / lasts, 1.0) if since < inf else _FIRST


def share(ramped: float, candidates: int) -> float:
    """Return the share of decisions that an endpoint with such a ramp may stand in."""
    return ramped * min(1.0, _FAIR / max(candidates, 1))


class SlowRow:
    """A row of candidates of which some start slowly.

    Args:
        whole: all of them that may be chosen, in order.
        slow: since when each of those that start slowly does, by slot; -inf for one that is throttled.
        lasts: seconds that a slow start takes.
    """

    def __init__(self, whole: Sequence[Endpoint], slow: dict[int, float], lasts: float) -> None:
        self._whole = whole
        self._slow = slow
        self._lasts = lasts
        slots = [endpoint.slot for endpoint in whole if endpoint.slot in slow]
        count = min(len(slots), _GROUPS)
        self._groups = [frozenset(slots[place::count]) for place in range(count)]
        self._rows: dict[int, Candidates] = {}
        self._bounds: list[float] = []
        self._drawn_at = inf

    def draw(self, now: float, generator: Generator) -> Candidates:
        """Return the candidates of one decision."""
        if not 0.0 <= now - self._drawn_at < _STEP:
            self._bounds, self._drawn_at = self._shares(now), now
        place = bisect_right(self._bounds, generator.random())
        row = self._rows.get(place)
        if row is None:
            allowed = self._groups[place] if place < len(self._groups) else frozenset[int]()
            kept = (endpoint for endpoint in self._whole if endpoint.slot not in self._slow or endpoint.slot in allowed)
            row = self._rows[place] = Candidates(kept)
        return row

    def _shares(self, now: float) -> list[float]:
        """Return cumulative shares of the groups; together at most 1."""
        shares = [
            share(sum(self._ramp(slot, now) for slot in group) / len(group), len(self._whole)) for group in self._groups
        ]
        excess = max(sum(shares), 1.0)
        return list(accumulate(part / excess for part in shares))

    def _ramp(self, slot: int, now: float) -> float:
        since = self._slow[slot]
        return THROTTLED if since == -inf else ramp(since, now, self._lasts)
