"""Counters and histograms as plain Python numbers, cheap enough for the request path."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

Labels: TypeAlias = tuple[str, ...]

MAX_MODELS = 1_000
_MEMORY = 0.99
ABSENT = "none"
OTHER = "other"


class Tally:
    """A counter for each combination of labels."""

    def __init__(self) -> None:
        self.counts: defaultdict[Labels, int] = defaultdict(int)

    def add(self, labels: Labels, amount: int = 1) -> None:
        """Count."""
        self.counts[labels] += amount

    def samples(self) -> list[tuple[Labels, float]]:
        """Read the counts."""
        return list(self.counts.items())


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; a value equal to a bound belongs under it, as Prometheus has it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Read the buckets as Prometheus wants them: `le` and the count of all values up to it."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


class ErrorShare:
    """The errors of predictions as a share of what they were made for; older ones count less."""

    __slots__ = ("_error", "_whole")

    def __init__(self) -> None:
        self._error = 0.0
        self._whole = 0.0

    def add(self, error: float, whole: float) -> None:
        """Note the error of one prediction, and the whole of which it was to be a part (above 0)."""
        self._error = _MEMORY * self._error + error
        self._whole = _MEMORY * self._whole + whole

    @property
    def value(self) -> float:
        """The share; above 0 if too much was predicted."""
        return self._error / self._whole if self._whole else 0.0


class ModelLabels:
    """Turns the model of a request into a label that clients cannot multiply.

    Only models that some endpoint serves keep their name, 1,000 at most; the rest share `other`.
    """

    def __init__(self, served: Callable[[], frozenset[str]]) -> None:
        self._served = served
        self._labels: dict[str, str] = {}

    @property
    def fill(self) -> float:
        """How many of the names that it may keep it does, as a share."""
        return len(self._labels) / MAX_MODELS

    def label(self, model: str | None) -> str:
        """Return the label of a model; `none` for a request without one."""
        if model is None:
            return ABSENT
        known = self._labels.get(model)
        if known is not None:
            return known
        if len(self._labels) >= MAX_MODELS or model not in self._served():
            return OTHER
        return self._labels.setdefault(model, printable(model))
