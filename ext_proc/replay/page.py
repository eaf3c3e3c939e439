"""Makes the page of a replay: one file with tables and plots that fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from ext_proc.ops.text import printable
from ext_proc.replay.plots import COLOURS, Line, linear, logarithmic, plot
from ext_proc.replay.results import BINS, Report, Series
from ext_proc.replay.table import cells, columns, failures, heading, legend

_LIGHT: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#6a3d9a", "#555555")
_DARK: Final = ("#56b4e9", "#ff9e5e", "#2fd3a4", "#f0a6cf", "#f0e442", "#9fd8ff", "#c3a5f5", "#bbbbbb")
_SMALL: Final = 170

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1b1b; --faint: #666; --grid: #ddd; --back: #fff; %(light)s }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --faint: #aaa; --grid: #3a3a3a; --back: #161616; %(dark)s }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--grid); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.faint { color: var(--faint); }
.scroll { overflow-x: auto; }
svg { width: 100%%; height: auto; font-size: 11px; }
svg text { fill: var(--faint); }
svg path { fill: none; stroke-width: 1.6; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
.key { display: inline-block; width: 1.2em; height: .25em; margin-right: .4em; vertical-align: middle; }
%(lines)s
"""


def render(report: Report, series: Sequence[Series]) -> str:
    """Make the page.

    Args:
        report: the numbers.
        series: what plots show, for each contestant; of the first seed.
    """
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>",
        f"<title>kvpicker replay: {_text(report.workload.name)}</title><style>{_style()}</style></head><body>",
        f"<h1>{escape(heading(report))}</h1>",
        _table(report),
        *(f"<p><strong>{escape(failure)}</strong></p>" for failure in failures(report)),
        *(f'<p class="faint">{escape(note)}</p>' for note in (legend(report), *report.workload.notes)),
        *_plots(report, series),
        f'<p class="faint">{escape(_foot(report))}</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _style() -> str:
    return _STYLE % {
        "light": " ".join(f"--c{number}: {colour};" for number, colour in enumerate(_LIGHT)),
        "dark": " ".join(f"--c{number}: {colour};" for number, colour in enumerate(_DARK)),
        "lines": "\n".join(
            f".line{number} {{ stroke: var(--c{number}); }} .key{number} {{ background: var(--c{number}); }}"
            for number in range(COLOURS)
        ),
    }


def _table(report: Report) -> str:
    heads = "".join(f"<th>{escape(column).replace(chr(10), '<br/>')}</th>" for column in columns(report))
    body = []
    for number, row in enumerate(report.strategies):
        first, *others = cells(report, row)
        key = f'<span class="key key{number % COLOURS}"></span>'
        body.append(f"<tr><td>{key}{escape(first)}</td>" + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>")
    rows = "\n".join(body)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _plots(report: Report, series: Sequence[Series]) -> list[str]:
    names = [printable(row.label) for row in report.strategies]
    parts = ["<h2>Seconds to the first token</h2>", _first_tokens(names, series)]
    parts += ["<h2>Prompt tokens found in caches</h2>", _hits(names, series)]
    parts.append("<h2>Requests on each engine</h2>")
    highest = max((value for each in series for engine in each.in_flight for value in engine), default=1.0)
    for number, (name, each) in enumerate(zip(names, series, strict=True)):
        key = f'<span class="key key{number % COLOURS}"></span>'
        parts += [f"<h3>{key}{escape(name)}</h3>", _loads(name, each, highest, number)]
    return parts


def _first_tokens(names: Sequence[str], series: Sequence[Series]) -> str:
    lines = [
        Line(name, [(wait, place / (len(each.ttft) - 1)) for place, wait in enumerate(each.ttft)], number)
        for number, (name, each) in enumerate(zip(names, series, strict=True))
        if len(each.ttft) > 1
    ]
    x = logarithmic("seconds to the first token", [wait for each in series for wait in each.ttft])
    return plot("Share of requests by seconds to the first token", x, linear("share of requests", 1.0), lines)


def _hits(names: Sequence[str], series: Sequence[Series]) -> str:
    lines = [
        Line(name, list(zip(_times(each), each.hit_ratio, strict=True)), number)
        for number, (name, each) in enumerate(zip(names, series, strict=True))
    ]
    x = linear("seconds since the start", max(each.seconds for each in series))
    return plot("Share of prompt tokens found in caches over time", x, linear("share of prompt tokens", 1.0), lines)


def _loads(name: str, series: Series, highest: float, colour: int) -> str:
    times = _times(series)
    lines = [
        Line(f"engine {number}", list(zip(times, engine, strict=True)), colour)
        for number, engine in enumerate(series.in_flight)
    ]
    x, y = linear("seconds since the start", series.seconds), linear("requests", highest)
    return plot(f"Requests on each engine over time with {name}", x, y, lines, _SMALL)


def _times(series: Series) -> list[float]:
    return [(place + 0.5) * series.seconds / BINS for place in range(BINS)]


def _foot(report: Report) -> str:
    seeds = ", ".join(map(str, report.seeds))
    return (
        f"kvpicker {report.version}. Numbers are means over the seeds {seeds}; plots show the first. Engines are "
        "models that were not checked against hardware: trust ratios, not seconds."
    )


def _text(text: str) -> str:
    return escape(printable(text))
