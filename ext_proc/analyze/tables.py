"""Prints a report for people, as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.analyze import cells
from ext_proc.analyze.lengths import Spread
from ext_proc.analyze.report import WHOLE_BLOCKS, Report
from ext_proc.ops.tables import print_table
from ext_proc.ops.text import counted, printable

_BAR = 30
_ROWS_OF_CURVE = 12
_NARROW = 8


def show(console: Console, report: Report) -> None:
    """Print a report."""
    _source(console, report)
    console.print(
        f"\n[bold]{report.reuse_ratio:.1%}[/bold] of {report.prompt_tokens:,} prompt tokens repeat the beginning of an "
        f"earlier prompt, {WHOLE_BLOCKS}; different blocks are {report.unique_tokens:,.0f} tokens",
        soft_wrap=True,
    )
    console.print("\n[bold]Advice[/bold]")
    for sentence in report.advice:
        console.print(Text(f"- {sentence}"))
    _policies(console, report)
    _curve(console, report)
    _families(console, report)
    _breakers(console, report)
    _lengths(console, report)
    _models(console, report)
    _sampling(console, report)


def _source(console: Console, report: Report) -> None:
    source = report.source
    console.print(Text(f"{counted(source.requests, 'request')} of {counted(source.lines, 'line')}"))
    if source.other_models:
        console.print(f"{source.other_models:,} of other models left out")
    for reason, count in sorted(source.unusable.items(), key=lambda pair: -pair[1]):
        console.print(Text(f"{counted(count, 'line')} left out: {reason}"))
    for example in source.examples:
        console.print(Text(f"  {printable(example)}"))


def _policies(console: Console, report: Report) -> None:
    fleet = report.fleet
    title = f"{fleet.engines} engines of {fleet.kv_tokens:,} KV tokens"
    _table(console, title, ("routing", "hit ratio", "tokens to prefill", "busiest / mean"), cells.routing(report))


def _curve(console: Console, report: Report) -> None:
    points = report.curve[:: max(1, len(report.curve) // _ROWS_OF_CURVE)]
    columns = ["one cache of", "hit ratio", ""]
    if points and points[0].gib is not None:
        columns.insert(1, "GiB")
    rows = [
        (
            f"{point.tokens:,}",
            *([] if point.gib is None else [f"{point.gib:,.2f}"]),
            f"{point.hit_ratio:.1%}",
            "█" * round(point.hit_ratio * _BAR),
        )
        for point in points
    ]
    _table(console, "Hit ratio against cache size (tokens, LRU)", columns, rows, words=len(columns) - 1)


def _families(console: Console, report: Report) -> None:
    found, more = cells.families(report)
    columns = ("prefix", "tokens", "requests", "of all", "of tokens", *more)
    _table(console, "Prefixes that many prompts begin with", columns, found)


def _breakers(console: Console, report: Report) -> None:
    found, more = cells.breakers(report)
    columns = ("what differs", "where", "at character", "at token", "requests", "tokens lost each", "of all", *more)
    _table(console, "What breaks prefixes", columns, found, words=1)


def _lengths(console: Console, report: Report) -> None:
    sessions = report.sessions
    rows = [("prompt tokens", *_figures(report.prompts, 0))]
    if report.outputs.count:
        rows.append(("output tokens", *_figures(report.outputs, 0)))
    if sessions.growing:
        rows.append(("requests per growing conversation", *_figures(sessions.turns, 0)))
    if sessions.gap_seconds.count:
        rows.append(("seconds between its requests", *_figures(sessions.gap_seconds, 1)))
    _table(console, "Lengths", ("", "mean", "p50", "p90", "p99", "largest"), rows)
    console.print(
        f"{sessions.growing:,} of {sessions.conversations:,} conversations grow; they hold "
        f"{sessions.growing_request_share:.1%} of requests, and {sessions.repeated_share:.1%} of prompt tokens stood "
        "in the request before in the same conversation",
        soft_wrap=True,
    )


def _models(console: Console, report: Report) -> None:
    if len(report.models) > 1:
        rows = [
            (printable(m.model) or "-", f"{m.requests:,}", f"{m.prompt_tokens:,}", f"{m.reuse_ratio:.1%}")
            for m in report.models
        ]
        _table(console, "Models", ("model", "requests", "prompt tokens", "reuse ratio"), rows)


def _sampling(console: Console, report: Report) -> None:
    sampling = report.sampling
    if sampling.curve_rate < 1:
        console.print(f"reuse ratio and curve rest on {sampling.curve_rate:.2%} of blocks: take them as ±1 %")
    if sampling.fleet_rate < 1:
        console.print(f"the routing comparison rests on {sampling.fleet_rate:.2%} of blocks: take it as ±2 %")
    if sampling.family_undercount:
        console.print(f"requests of a prefix may be too few by up to {sampling.family_undercount:,}")


def _figures(spread: Spread, digits: int) -> list[str]:
    figures = (spread.mean, spread.p50, spread.p90, spread.p99, spread.largest)
    return [f"{figure:,.{digits}f}" for figure in figures]


def _table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 0) -> None:
    """Print a table unless it is empty; the first column and that with number `words` are words, the others figures."""
    listed = list(rows)
    if not listed:
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        is_text = number in (0, words) or column == cells.TEXT
        room = max(_NARROW, *(len(row[number]) for row in listed))
        table.add_column(
            column if is_text else "\n".join(wrap(column, room, break_long_words=False)),
            justify="left" if is_text else "right",
            overflow="fold",
            vertical="bottom",
            no_wrap=not is_text,
        )
    for row in listed:
        table.add_row(*map(Text, row))
    console.print()
    print_table(console, table)
