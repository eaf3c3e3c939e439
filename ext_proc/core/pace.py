"""How fast places are given to those who wait: what is seen lately, and what is expected before anything is seen.

What counts for a priority is what went to it and to those below it: what goes to higher ones is not there for it,
whoever of them is still to come.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

_MEMORY_S = 15.0
"""Time constant of forgetting."""

_TRUST_S = 2.0
"""Seconds of waiting that the expectation counts for; it loses weight as places are seen to be given."""


class Rate(NamedTuple):
    """Places and tokens given per second."""

    requests: float
    tokens: float


class Pace:
    """Learns the rate while anybody waits; at other times nothing can be seen of it."""

    def __init__(self) -> None:
        self._given: dict[int, Rate] = {}
        self._seconds = 0.0
        self._since = 0.0

    def pass_time(self, now: float, *, waiting: bool) -> None:
        """Let time pass in which somebody waited, or nobody did; monotonic seconds."""
        passed, self._since = max(now - self._since, 0.0), now
        if not waiting:
            return
        kept = exp(-passed / _MEMORY_S)
        self._seconds = self._seconds * kept + _MEMORY_S * (1.0 - kept)
        self._given = {
            priority: Rate(given.requests * kept, given.tokens * kept)
            for priority, given in self._given.items()
            if given.requests * kept > 1e-3  # noqa: PLR2004  as good as forgotten
        }

    def give(self, priority: int, tokens: float) -> None:
        """Note that one of those who waited got a place."""
        given = self._given.get(priority, Rate(0.0, 0.0))
        self._given[priority] = Rate(given.requests + 1.0, given.tokens + tokens)

    def rate(self, priority: int, expected: Rate) -> Rate:
        """Return the rate for a priority; `expected` counts as long as little is seen."""
        given = [rate for level, rate in self._given.items() if level <= priority]
        seconds = self._seconds + _TRUST_S
        return Rate(
            (sum(rate.requests for rate in given) + _TRUST_S * expected.requests) / seconds,
            (sum(rate.tokens for rate in given) + _TRUST_S * expected.tokens) / seconds,
        )
