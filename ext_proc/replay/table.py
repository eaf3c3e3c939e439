"""Prints the results of a replay as a table."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from ext_proc.ops.text import printable
from ext_proc.replay.results import Report, Row

COLUMNS: Final = (
    "strategy",
    "TTFT\nmean s",
    "\np50 s",
    "\np99 s",
    "TPOT\nmean ms",
    "hit\nratio",
    "good-\nput",
    "im-\nbalance",
    "mean TTFT\nto first",
    "\nto best",
)
"""Heads of the columns, for the page too."""


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of the columns."""
    mean = seconds(row.ttft_mean_s)
    if len(row.runs) > 1:
        mean += f" [{seconds(row.ttft_mean_least_s)}-{seconds(row.ttft_mean_most_s)}]"
    return (
        printable(row.label),
        mean,
        seconds(row.ttft_p50_s),
        seconds(row.ttft_p99_s),
        f"{row.tpot_mean_s * 1e3:.1f}",
        f"{row.hit_ratio:.3f}",
        f"{row.goodput:.3f}",
        f"{row.balance:.2f}",
        f"{row.ttft_to_first:.2f}",
        f"{row.ttft_to_best:.2f}",
    )


def seconds(value: float) -> str:
    """Write seconds with three digits that say something."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004  three digits


def heading(report: Report) -> str:
    """Say in a line what was replayed on what."""
    workload = report.workload
    engines = " + ".join(f"{kind.count} {kind.preset}" for kind in report.engines)
    return (
        f"{printable(workload.name)}: {workload.requests} requests, {workload.rate:.3g} a second, "
        f"on {engines}; {len(report.seeds)} seed{'s' if len(report.seeds) > 1 else ''}"
    )


def legend(report: Report) -> str:
    """Say what the numbers mean."""
    slo = report.slo
    return (
        f"goodput: first token within {slo.ttft_s:g} s + prompt/{slo.prefill_rate:g}, and {slo.tpot_s * 1e3:g} ms per "
        f"token; imbalance: variation over engines of computed prompt tokens; the first {report.warm_up:.0%} of the "
        "time does not count"
    )


def show(console: Console, report: Report) -> None:
    """Print the table and what one should know to read it."""
    table = Table(title=heading(report), title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if place else "left", overflow="fold", vertical="bottom")
    for row in report.strategies:
        table.add_row(*cells(row))
    console.print(table)
    for note in (legend(report), *report.workload.notes):
        console.print(note, soft_wrap=True)
