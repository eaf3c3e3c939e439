"""Prints the results of a replay as a table."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from ext_proc.ops.tables import print_table
from ext_proc.ops.text import counted, printable
from ext_proc.replay.results import Report, Row

_COLUMNS: Final = (
    "strategy",
    "requests\ncounted",
    "TTFT\nmean s",
    "\np50 s",
    "\np99 s",
    "TPOT\nmean ms",
    "hit\nratio",
    "goodput",
    "imbalance",
    "mean TTFT\nto first",
    "\nto best",
)
_FAILURES: Final = "strategy\nfailed"


def columns(report: Report) -> tuple[str, ...]:
    """Return the heads of the columns, for the page too; failures have one only if a strategy failed."""
    return (*_COLUMNS, _FAILURES) if failures(report) else _COLUMNS


def cells(report: Report, row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of the columns."""
    mean = seconds(row.ttft_mean_s)
    if len(row.runs) > 1:
        mean += f" [{seconds(row.ttft_mean_least_s)}-{seconds(row.ttft_mean_most_s)}]"
    return (
        printable(row.label),
        f"{row.requests:,.0f}",
        mean,
        seconds(row.ttft_p50_s),
        seconds(row.ttft_p99_s),
        f"{row.tpot_mean_s * 1e3:.1f}",
        f"{row.hit_ratio:.3f}",
        f"{row.goodput:.3f}",
        f"{row.balance:.2f}",
        f"{row.ttft_to_first:.2f}",
        f"{row.ttft_to_best:.2f}",
        *([f"{row.strategy_failures:,.0f}"] if failures(report) else []),
    )


def failures(report: Report) -> list[str]:
    """Say of each strategy that failed how often, why, and who decided in its place."""
    return [
        f"{printable(row.label)} failed on {counted(max(round(row.strategy_failures), 1), 'request')} a run, and "
        f"least-request decided in its place; the first time: {row.failure}"
        for row in report.strategies
        if row.failure
    ]


def seconds(value: float) -> str:
    """Write seconds with three digits that say something."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004  three digits


def heading(report: Report) -> str:
    """Say in a line what was replayed on what."""
    workload = report.workload
    engines = " + ".join(f"{kind.count} {kind.preset}" for kind in report.engines)
    rate = f", {workload.rate:.3g} a second" if workload.rate else ""
    requests, seeds = counted(workload.requests, "request"), counted(len(report.seeds), "seed")
    return f"{printable(workload.name)}: {requests}{rate}, on {engines}; {seeds}"


def legend(report: Report) -> str:
    """Say what the numbers mean."""
    slo = report.slo
    return (
        f"goodput: first token within {slo.ttft_s:g} s + prompt/{slo.prefill_rate:g}, and {slo.tpot_s * 1e3:g} ms per "
        f"token; imbalance: variation over engines of computed prompt tokens; the first {report.warm_up:.0%} of the "
        "time does not count"
        + ("; strategy failed: requests on which it raised or returned nonsense" if failures(report) else "")
    )


def show(console: Console, report: Report) -> None:
    """Print the table and what one should know to read it."""
    table = Table(title=heading(report), title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns(report)):
        is_words = place == 0
        table.add_column(
            column,
            justify="left" if is_words else "right",
            overflow="fold",
            vertical="bottom",
            no_wrap=not is_words,
        )
    for row in report.strategies:
        table.add_row(*cells(report, row))
    print_table(console, table)
    for note in (legend(report), *report.workload.notes):
        console.print(note, soft_wrap=True)
