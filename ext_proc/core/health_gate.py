"""Which of a row of candidates may be chosen: sorted once, and kept until some endpoint's health changes.

A fleet of a thousand with one endpoint ejected would otherwise pay for a new row of candidates in every decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

from ext_proc.core.candidates import Candidates
from ext_proc.core.generator import Generator
from ext_proc.core.health_states import OUT, HealthState
from ext_proc.core.model import Endpoint
from ext_proc.core.slow_start import SlowRow

_MOST_ROWS = 64
"""Rows kept at most: one for each model that is asked for, more than which just cost more."""


class Standing(Protocol):
    """What the gate needs to know of an endpoint that is not simply ready."""

    @property
    def state(self) -> HealthState:
        """Where it stands."""

    @property
    def until(self) -> float:
        """When its ejection or its trial ends, monotonic seconds."""

    @property
    def loading(self) -> bool:
        """Whether the engine itself says that it loads."""

    @property
    def throttled(self) -> bool:
        """Whether it would be ejected if the policy allowed another one."""

    @property
    def slow_from(self) -> float | None:
        """When its slow start began; infinite if its clock does not run yet, None if there is none."""


class _Row:
    __slots__ = ("slow", "until", "whole", "within")

    def __init__(
        self, whole: Sequence[Endpoint], within: Sequence[Endpoint], slow: SlowRow | None, until: float
    ) -> None:
        self.whole = whole
        self.within = within
        self.slow = slow
        self.until = until


class HealthGate:
    """Sorts rows of candidates by the standing of their endpoints.

    Args:
        standings: of the endpoints that are not simply ready, by slot; whoever changes it calls `forget`.
    """

    def __init__(self, standings: Mapping[int, Standing]) -> None:
        self.slow_start = 15.0
        self._standings = standings
        self._rows: dict[int, _Row] = {}

    def __reduce__(self) -> tuple[type[HealthGate], tuple[Mapping[int, Standing]], dict[str, float]]:
        """Copy without the rows, which are no state: they can be made again."""
        return HealthGate, (self._standings,), {"slow_start": self.slow_start}

    def forget(self) -> None:
        """Drop what was sorted, since a standing changed."""
        self._rows.clear()

    def admit(self, candidates: Sequence[Endpoint], now: float, generator: Generator) -> Sequence[Endpoint]:
        """Return who may be chosen now; the very same object if all may."""
        row = self._rows.get(id(candidates))
        # The row holds the candidates, so their id cannot have passed to others while it is here.
        if row is None or now >= row.until:
            row = self._sorted(candidates, now)
        return row.within if row.slow is None else row.slow.draw(now, generator)

    def _sorted(self, candidates: Sequence[Endpoint], now: float) -> _Row:
        row = self._sort(candidates, now)
        # Others than those of a snapshot are made for one decision and never come again.
        if isinstance(candidates, Candidates):
            if len(self._rows) >= _MOST_ROWS:
                self._rows.clear()
            self._rows[id(candidates)] = row
        return row

    def _sort(self, candidates: Sequence[Endpoint], now: float) -> _Row:
        within: list[Endpoint] = []
        slow: dict[int, float] = {}
        until, steady, get = inf, 0, self._standings.get
        for endpoint in candidates:
            standing = get(endpoint.slot)
            if standing is not None:
                if standing.state is HealthState.WARMING:
                    continue
                if standing.state in OUT and standing.until > now:
                    until = min(until, standing.until)
                    continue
                since = -inf if standing.throttled else standing.slow_from
                if since is not None and (since == inf or now < since + self.slow_start or standing.throttled):
                    slow[endpoint.slot] = since
                    until = until if standing.throttled else min(until, since + self.slow_start)
                    within.append(endpoint)
                    continue
            steady += 1
            within.append(endpoint)
        if steady == len(candidates):
            return _Row(candidates, candidates, None, until)
        if steady:
            made = SlowRow(within, slow, self.slow_start) if slow else None
            return _Row(candidates, within if slow else Candidates(within), made, until)
        return _Row(candidates, self._last_resort(candidates, slow), None, until)

    def _last_resort(self, candidates: Sequence[Endpoint], slow: Mapping[int, float]) -> Sequence[Endpoint]:
        """Return whom to choose from if nobody is well: those who start, or else all but those who say they load."""
        starting = [endpoint for endpoint in candidates if slow.get(endpoint.slot, -inf) > -inf]
        if starting:
            return Candidates(starting)
        get = self._standings.get
        left = [e for e in candidates if (standing := get(e.slot)) is None or not standing.loading]
        return candidates if len(left) == len(candidates) else Candidates(left)
