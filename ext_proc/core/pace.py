"""How long an engine takes per generated token, told from whole answers: the slope of duration over length."""

from __future__ import annotations

import msgspec

_MEMORY = 0.99
_ENOUGH = 20.0
_LEAST_SPREAD = 4.0


class Pace(msgspec.Struct, gc=False):
    """A line through (tokens, seconds) of finished answers, by least squares with forgetting."""

    _count: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """Learn from a finished answer."""
        self._count = _MEMORY * self._count + 1
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds
        self._squares = _MEMORY * self._squares + tokens * tokens
        self._products = _MEMORY * self._products + tokens * seconds

    @property
    def seconds_per_token(self) -> float | None:
        """The slope; None before there are enough answers of different lengths."""
        if self._count < _ENOUGH:
            return None
        mean = self._tokens / self._count
        variance = self._squares / self._count - mean * mean
        if variance < _LEAST_SPREAD:
            return None
        slope = (self._products / self._count - mean * self._seconds / self._count) / variance
        return max(slope, 0.0)
