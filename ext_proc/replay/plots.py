"""Draws plots as inline SVG; colours come from the page, so that they fit its light and its dark form."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

import msgspec

WIDTH: Final = 720
HEIGHT: Final = 300
COLOURS: Final = 8
"""Lines have the classes `line0` to `line7` in turn."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 40
_SMALLEST: Final = 1e-6
"""Logarithmic axes begin no lower."""


class Line(msgspec.Struct, frozen=True):
    """A line of a plot.

    Attributes:
        name: shown when pointed at.
        points: x and y in the units of the axes; where y is None the line is broken.
        colour: number of its colour.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int


class Axis(msgspec.Struct, frozen=True):
    """An axis.

    Attributes:
        title: what it shows, with the unit.
        low: value at its beginning.
        high: value at its end.
        logarithmic: True if equal steps are equal factors.
    """

    title: str
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, 0 to 1; what lies outside is moved to the end."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Return round values to write at the axis."""
        if self.logarithmic:
            return [10.0**power for power in range(ceil(log10(self.low)), floor(log10(self.high)) + 1)]
        step = _round_step((self.high - self.low) / 5)
        first = ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, floor(self.high / step + 1e-9) + 1)]


def linear(title: str, highest: float) -> Axis:
    """Make an axis from 0 up to a value."""
    return Axis(title, 0.0, highest if highest > 0 else 1.0)


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """Make an axis over whole powers of ten that holds all values from a millionth up."""
    positive = [max(value, _SMALLEST) for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
    low -= 10.0**low > min(positive)  # a logarithm may round up to a whole number
    high += 10.0**high < max(positive)
    return Axis(title, 10.0**low, 10.0 ** max(high, low + 1), logarithmic=True)


def plot(title: str, x: Axis, y: Axis, lines: Sequence[Line], height: int = HEIGHT) -> str:
    """Draw lines.

    Args:
        title: says in a sentence what is shown, for those who cannot see it.
        x: axis to the right.
        y: axis upwards.
        lines: what to draw.
        height: of the drawing, with the same unit as WIDTH.
    """
    frame = _Frame(x, y, height)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    parts += _grid(frame)
    parts += [_polyline(frame, line) for line in lines]
    parts.append("</svg>")
    return "\n".join(parts)


class _Frame:
    """Turns values into positions of the drawing."""

    def __init__(self, x: Axis, y: Axis, height: int) -> None:
        self.x = x
        self.y = y
        self.bottom = height - _BOTTOM

    def across(self, value: float) -> float:
        return round(_LEFT + self.x.place(value) * (WIDTH - _LEFT - _RIGHT), 1)

    def up(self, value: float) -> float:
        return round(self.bottom - self.y.place(value) * (self.bottom - _TOP), 1)


def _grid(frame: _Frame) -> list[str]:
    middle = (frame.bottom + _TOP) / 2
    parts = []
    for tick in frame.x.ticks():
        place = frame.across(tick)
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{_TOP}" y2="{frame.bottom}"/>')
        parts.append(f'<text x="{place}" y="{frame.bottom + 15}" text-anchor="middle">{tick:g}</text>')
    for tick in frame.y.ticks():
        place = frame.up(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place}" y2="{place}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{place + 4}" text-anchor="end">{tick:g}</text>')
    across = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{across}" y="{frame.bottom + 33}" text-anchor="middle">{escape(frame.x.title)}</text>')
    turned = f'transform="rotate(-90 14 {middle})"'
    parts.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(frame.y.title)}</text>')
    return parts


def _polyline(frame: _Frame, line: Line) -> str:
    path: list[str] = []
    is_down = False
    for x, y in line.points:
        if y is not None:
            path.append(f"{'L' if is_down else 'M'}{frame.across(x)} {frame.up(y)}")
        is_down = y is not None
    return f'<path class="line{line.colour % COLOURS}" d="{" ".join(path)}"><title>{escape(line.name)}</title></path>'


def _round_step(rough: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below."""
    power = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
