"""Writes a report as one HTML page that needs nothing else: no script, no font, no request to anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ext_proc.analyze import cells, plots
from ext_proc.analyze.lengths import Spread
from ext_proc.analyze.report import WHOLE_BLOCKS, Report
from ext_proc.ops.text import counted, printable

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#667;--paper:#fff;--line:#0969da;--grid:#d8dee4}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa4b0;--paper:#0d1117;--line:#58a6ff;--grid:#30363d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;
padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0}th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid
var(--grid)}th:first-child,td:first-child,td.w{text-align:left}td.w{overflow-wrap:anywhere}
.big{font-size:2rem;font-weight:600}.dim,svg text{color:var(--dim);fill:var(--dim)}svg{width:100%;font-size:12px}
svg .line{fill:none;stroke:var(--line);stroke-width:2}svg .grid{stroke:var(--grid)}svg .bar{fill:var(--line)}
svg .mark{stroke:var(--dim);stroke-dasharray:3 3}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """Render a report."""
    parts = [
        _head(report),
        "<h2>Advice</h2><ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in report.advice) + "</ul>",
        _routing(report),
        _curve(report),
        _families(report),
        _breakers(report),
        _lengths(report),
        _models(report),
        _sampling(report),
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width"/><title>Prefix reuse</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _head(report: Report) -> str:
    source = report.source
    files = ", ".join(printable(name) for name in source.files)
    unusable = source.unusable.items()
    left_out = "".join(f"<li>{counted(count, 'line')}: {escape(reason)}</li>" for reason, count in unusable)
    requests, lines = counted(source.requests, "request"), counted(source.lines, "line")
    return (
        f'<h1>Prefix reuse</h1><p class="dim">{escape(files)}: {requests} of {lines}'
        + (f", {source.other_models:,} of other models left out" if source.other_models else "")
        + "</p>"
        + (f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else "")
        + f'<p><span class="big">{report.reuse_ratio:.1%}</span> of {report.prompt_tokens:,} prompt tokens repeat the '
        f"beginning of an earlier prompt, {WHOLE_BLOCKS}; different blocks are {report.unique_tokens:,.0f} tokens.</p>"
    )


def _routing(report: Report) -> str:
    fleet = report.fleet
    drawn = plots.bars([(r.policy, r.hit_ratio, f"{r.hit_ratio:.1%}") for r in fleet.policies], 1.0)
    title = f"Hit ratio on {fleet.engines} engines of {fleet.kv_tokens:,} KV tokens"
    return _section(
        title, ("routing", "hit ratio", "tokens to prefill", "busiest / mean"), cells.routing(report), drawn
    )


def _curve(report: Report) -> str:
    in_gib = bool(report.curve) and report.curve[0].gib is not None
    points = [(point.gib if in_gib and point.gib else point.tokens, point.hit_ratio) for point in report.curve]
    scale = points[0][0] / report.curve[0].tokens if points else 1.0
    one, engines = report.fleet.kv_tokens, report.fleet.engines
    marks = [(one * scale, "one engine"), *([(one * engines * scale, f"all {engines}")] if engines > 1 else [])]
    drawn = plots.curve(points, marks, "GiB" if in_gib else "tokens")
    return f"<h2>Hit ratio against cache size</h2>{drawn}" if drawn else ""


def _families(report: Report) -> str:
    found, more = cells.families(report)
    columns = ("prefix", "tokens", "requests", "of all requests", "of prompt tokens", *more)
    return _section("Prefixes that many prompts begin with", columns, found)


def _breakers(report: Report) -> str:
    found, more = cells.breakers(report)
    columns = ("what differs", "where", "at character", "at token", "requests", "tokens lost each", "of all tokens")
    return _section("What breaks prefixes", (*columns, *more), found)


def _lengths(report: Report) -> str:
    names = [f"up to {band.up_to_tokens:,}" if band.up_to_tokens else "longer" for band in report.bands]
    largest = max((band.requests for band in report.bands), default=0)
    drawn = plots.bars(
        [(name, band.requests, f"{band.requests:,}") for name, band in zip(names, report.bands, strict=True)], largest
    )
    sessions = report.sessions
    spreads = (
        ("prompt tokens", report.prompts, 0),
        ("output tokens", report.outputs, 0),
        ("requests per growing conversation", sessions.turns, 0),
        ("seconds between its requests", sessions.gap_seconds, 1),
    )
    rows = [(name, *_figures(spread, digits)) for name, spread, digits in spreads if spread.count]
    words = (
        f"<p>{sessions.growing:,} of {sessions.conversations:,} conversations grow; they hold "
        f"{sessions.growing_request_share:.1%} of requests, and {sessions.repeated_share:.1%} of prompt tokens stood "
        "in the request before in the same conversation.</p>"
    )
    return (
        _section("Prompt lengths and conversations", ("", "mean", "p50", "p90", "p99", "largest"), rows, drawn) + words
    )


def _models(report: Report) -> str:
    if len(report.models) < 2:  # noqa: PLR2004  one model needs no table
        return ""
    rows = [
        (printable(m.model) or "-", f"{m.requests:,}", f"{m.prompt_tokens:,}", f"{m.reuse_ratio:.1%}")
        for m in report.models
    ]
    return _section("Models", ("model", "requests", "prompt tokens", "reuse ratio"), rows)


def _sampling(report: Report) -> str:
    sampling = report.sampling
    compared = counted(sampling.compared_requests, "request")
    return (
        f'<p class="dim">Curve from {sampling.curve_rate:.2%} of blocks, routing from {sampling.fleet_rate:.2%}; '
        f"{compared} compared for what breaks prefixes; counts of prefixes too low by at "
        f"most {sampling.family_undercount:,}.</p>"
    )


def _figures(spread: Spread, digits: int) -> list[str]:
    return [f"{x:,.{digits}f}" for x in (spread.mean, spread.p50, spread.p90, spread.p99, spread.largest)]


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], drawn: str = "") -> str:
    """Render a heading, a plot and a table; nothing if there is nothing to show."""
    listed = list(rows)
    if not listed:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in listed)
    return f"<h2>{escape(title)}</h2>{drawn}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(words: str) -> str:
    is_figure = words[:1].isdigit() and words[-1:] in "0123456789%"
    return f"<td>{escape(words)}</td>" if is_figure else f'<td class="w">{escape(words)}</td>'
