"""The context length (A) at which attention costs as much as all else, learnt from service times."""

from __future__ import annotations

from math import exp, log

import msgspec

_FORGETTING = 0.9995
_LEAST_WEIGHED = 500.0
_LEAST_TELLING = 1_000.0
"""Uncached tokens below which what a step takes anyhow hides what attention takes."""

_ENOUGH = 200
_EVERY = 20
_LEAST, _MOST = 6_000.0, 300_000.0
_SMOOTHING = 0.1
START = 24_000.0
"""Suits an 8B model; too low is as wrong as too high."""


class AttentionLearner(msgspec.Struct, gc=False):
    """Weighted least squares of `svc ~ b1 u + b2 u (L - u/2)`, whose A is b1 / b2.

    The weight of an observation is 1 / max(u, 500); older ones are forgotten slowly.

    Attributes:
        length: A in tokens.
        learnt: True once observations have had a say.
        slots: the endpoints that it was learnt of.
    """

    length: float = START
    learnt: bool = False
    slots: set[int] = msgspec.field(default_factory=set)
    _count: int = 0
    _uu: float = 0.0
    _uv: float = 0.0
    _vv: float = 0.0
    _us: float = 0.0
    _vs: float = 0.0

    def note(self, prompt: float, uncached: float, service: float) -> None:
        """Learn from one prefill: prompt tokens (L), uncached ones of them (u), and what it took.

        `service` may be in any unit that is the same for all endpoints, such as seconds at the speed of one of them.
        """
        if uncached < _LEAST_TELLING:
            return
        u, v = uncached, uncached * (prompt - uncached / 2)
        weight, keep = 1 / max(u, _LEAST_WEIGHED), _FORGETTING
        self._uu = keep * self._uu + weight * u * u
        self._uv = keep * self._uv + weight * u * v
        self._vv = keep * self._vv + weight * v * v
        self._us = keep * self._us + weight * u * service
        self._vs = keep * self._vs + weight * v * service
        self._count += 1
        if self._count >= _ENOUGH and self._count % _EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        determinant = self._uu * self._vv - self._uv * self._uv
        if determinant <= 1e-9 * self._uu * self._vv:  # all prompts alike: nothing to tell the two parts by
            return
        linear = (self._us * self._vv - self._vs * self._uv) / determinant
        attention = (self._vs * self._uu - self._us * self._uv) / determinant
        if linear <= 0:
            return
        fitted = linear / attention if attention > 0 else _MOST
        fitted = min(max(fitted, _LEAST), _MOST)
        self.length = exp((1 - _SMOOTHING) * log(self.length) + _SMOOTHING * log(fitted))
        self.learnt = True
