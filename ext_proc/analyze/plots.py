"""Draws the plots of the page as inline SVG, in colours that the page's style sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 40
_BAR, _GAP = 22, 8
_LABELS = 170


def curve(points: Sequence[tuple[float, float]], marks: Sequence[tuple[float, str]], unit: str) -> str:
    """Draw shares (0 to 1) against sizes on a logarithmic axis.

    Args:
        points: sizes, ascending, each with its share.
        marks: sizes to mark, each with a word.
        unit: what sizes are measured in.
    """
    if len(points) < 2:  # noqa: PLR2004  a line has two ends
        return ""
    low, high = math.log(points[0][0]), math.log(points[-1][0])
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def across(size: float) -> float:
        return _LEFT + (math.log(size) - low) / (high - low) * width

    def down(share: float) -> float:
        return _TOP + (1 - share) * height

    parts = [_grid(down(share), f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    sizes = _round_sizes(points[0][0], points[-1][0])
    parts += [_text(across(size), HEIGHT - 22, _short(size), "middle") for size in sizes]
    for size, word in marks:
        if points[0][0] <= size <= points[-1][0]:
            place = f"{across(size):.1f}"
            parts.append(f'<line class="mark" x1="{place}" x2="{place}" y1="{_TOP}" y2="{_TOP + height}"/>')
            parts.append(_text(across(size) + 4, _TOP + 10, word, "start"))
    line = " ".join(f"{across(size):.1f},{down(share):.1f}" for size, share in points)
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, f"cache size, {unit}", "end"))
    return _svg(HEIGHT, parts)


def bars(rows: Sequence[tuple[str, float, str]], largest: float) -> str:
    """Draw horizontal bars.

    Args:
        rows: a word, a length and the words at its end.
        largest: the length that fills the width.
    """
    parts: list[str] = []
    room = WIDTH - _LABELS - 90
    for number, (word, length, figure) in enumerate(rows):
        top = number * (_BAR + _GAP)
        wide = room * min(length / largest, 1.0) if largest else 0.0
        parts.append(_text(_LABELS - 8, top + 15, word, "end"))
        parts.append(f'<rect class="bar" x="{_LABELS}" y="{top}" width="{wide:.1f}" height="{_BAR}"/>')
        parts.append(_text(_LABELS + wide + 6, top + 15, figure, "start"))
    return _svg(len(rows) * (_BAR + _GAP), parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _grid(place: float, word: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
    return line + _text(_LEFT - 6, place + 4, word, "end")


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _round_sizes(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**power for power in powers]


def _short(size: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return f"{size:g}"
