"""Reads wanted samples out of a page of metrics (Prometheus text and OpenMetrics) without understanding the rest.

A page has hundreds of lines, most of them buckets of histograms, and a dozen are wanted; so lines are told apart by the
bytes they begin with, and only wanted ones are parsed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

Series: TypeAlias = dict[bytes, float]
"""Value by label set, the label set as it stands between the braces."""

_LABEL_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'

_SAMPLE = re.compile(
    rb"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*+)"
    rb'(?:[ \t]*+\{(?P<labels>(?:[^"}]++|' + _LABEL_TEXT + rb")*+)\}[ \t]*+|[ \t]++)"
    rb"(?P<value>[-+.0-9A-Za-z]++)"
    rb"(?:[ \t]++[-+.0-9eE]++)?+"  # a timestamp
    rb"[ \t\r]*+(?:#.*+)?+"  # an exemplar
)

_LABEL = re.compile(rb"(?P<name>[A-Za-z_]\w*+)[ \t]*+=[ \t]*+(?P<text>" + _LABEL_TEXT + rb")")
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_FAMILY = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*?(?=(?:_bucket|_sum|_count)?(?![A-Za-z0-9_:]))")
_ENDS = frozenset({b"# EOF", b"# EOF\r"})


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a wanted sample stands: the number of its line, and the line up to its value."""

    line: int
    prefix: bytes
    name: bytes
    labels: bytes


class Layout(msgspec.Struct, frozen=True):
    """Where the wanted samples of a page stand, and how many lines it has."""

    lines: int
    places: Sequence[Place]


class Page(msgspec.Struct, frozen=True):
    """The wanted samples of a page.

    Attributes:
        series: by name of the sample, such as `vllm:time_to_first_token_seconds_sum`.
        layout: for the next page of the same engine; None if this one is not fit to go by.
        truncated: the page ends within a line. That line is left out, and so is its whole family, of which more may be
            missing.
        broken: wanted lines that are no samples.
    """

    series: Mapping[bytes, Series]
    layout: Layout | None = None
    truncated: bool = False
    broken: int = 0


class Scanner:
    """Finds the samples of some names; made once and used for many pages.

    Args:
        names: names of samples, with `_sum`, `_count` and `_total` where samples have them.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = frozenset(names)
        self._width = min(map(len, self._names))
        self._heads = frozenset(name[: self._width] for name in self._names) | {end[: self._width] for end in _ENDS}

    def scan(self, page: bytes, layout: Layout | None = None) -> Page:
        """Read a page; text after the line `# EOF` is not read. Of two samples with equal labels the later counts.

        Args:
            page: its bytes.
            layout: that of the page before. If this one has as many lines and each sample stands where it stood, it is
                taken to hold no further ones, which saves most of the work. Leave it out now and then.
        """
        lines = page.split(b"\n")
        cut = lines.pop().strip()
        is_cut = bool(cut) and cut not in _ENDS
        if layout is not None and not is_cut and len(lines) == layout.lines:
            series = _read_again(lines, layout)
            if series is not None:
                return Page(series, layout)
        return self._search(lines, cut if is_cut else b"")

    def _search(self, lines: list[bytes], cut: bytes) -> Page:
        if lines and min(lines) < b"#":  # some line begins with a blank, or is empty
            lines = [line.strip(b" \t") for line in lines]
        width, heads = self._width, self._heads
        series: dict[bytes, Series] = {}
        places: list[Place] = []
        broken, is_cut = 0, bool(cut)
        for number, line in [(number, line) for number, line in enumerate(lines) if line[:width] in heads]:
            if line in _ENDS:
                is_cut = False
                break
            name = line.partition(b"{")[0]
            if name not in self._names and b" " not in name and b"\t" not in name:
                continue  # a bucket, which begins like the sum that is wanted
            found = _SAMPLE.fullmatch(line)
            value = None if found is None else _to_float(found["value"])
            if found is None or value is None:
                broken += 1
            elif found["name"] in self._names:
                name, labels_ = found["name"], found["labels"] or b""
                series.setdefault(name, {})[labels_] = value
                places.append(Place(number, line[: found.start("value")], name, labels_))
        if is_cut and lines:
            last = _family(lines[-1])
            for name in [name for name in series if _may_be_one(last, _family(cut)) and _family(name) == last]:
                del series[name]
        layout = None if is_cut or broken else Layout(len(lines), places)
        return Page(series, layout, is_cut, broken)


@functools.lru_cache(maxsize=1024)
def labels(text: bytes) -> Mapping[str, str]:
    """Parse a label set; cached, since an engine's label sets are the same in each scrape."""
    return MappingProxyType(
        {found["name"].decode(): _unescaped(found["text"][1:-1]) for found in _LABEL.finditer(text)}
    )


def _read_again(lines: Sequence[bytes], layout: Layout) -> dict[bytes, Series] | None:
    series: dict[bytes, Series] = {}
    for place in layout.places:
        line = lines[place.line]
        if not line.startswith(place.prefix):
            return None
        value = _to_float(line[len(place.prefix) :])
        if value is None:
            return None
        series.setdefault(place.name, {})[place.labels] = value
    return series


def _to_float(text: bytes) -> float | None:
    """Read a number, NaN and infinities included; digits grouped by underscores are Python's alone."""
    try:
        return None if b"_" in text else float(text)
    except ValueError:
        return None


def _family(line: bytes) -> bytes:
    """Return what the names of all samples begin with that are written together; empty for a comment."""
    found = _FAMILY.match(line)
    return found[0] if found else b""


def _may_be_one(last: bytes, cut: bytes) -> bool:
    """Tell whether a line that was cut may go on with the family before it, even if it was cut within its name."""
    return bool(last and cut) and (last.startswith(cut) or cut.startswith(last))


def _unescaped(text: bytes) -> str:
    if b"\\" in text:
        text = _ESCAPE.sub(lambda found: b"\n" if found[1] == b"n" else found[1], text)
    return text.decode("utf-8", "replace")
