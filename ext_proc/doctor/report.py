"""Prints what the doctor found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.doctor.events_advice import seen
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Finding, Level
from ext_proc.ops.text import printable

WIDTH = 160
"""Columns where the output is no terminal, so that nothing is cut."""

_COLUMNS = ("endpoint", "pool", "engine", "models", "metrics", "KV cache", "KV events", "/tokenize", "cached in usage")
_STYLES = {Level.PROBLEM: "bold red", Level.ADVICE: "yellow"}


def show(examined: Sequence[Examination], findings: Sequence[Finding], output: TextIO) -> None:
    """Print one line per engine, then the findings."""
    console = Console(file=output, highlight=False)
    if not console.is_terminal:
        console = Console(file=output, highlight=False, width=WIDTH)
    console.print(_table(examined))
    for finding in findings:
        line = Text(f"\n{finding.level}  ", style=_STYLES[finding.level])
        line.append(f"{finding.where}: {printable(finding.what)}", style="default")
        console.print(line, soft_wrap=True)
        for name, text in (("do", finding.do), ("brings", finding.brings)):
            if text:
                console.print(Text(f"  {name:7}{text}"), soft_wrap=True)
    if not findings:
        console.print("\nNothing to mend and nothing to switch on.")


def _table(examined: Sequence[Examination]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column)
    for one in examined:
        cells = (one.endpoint, one.pool, *(_cells(one) if one.reachable else ("does not answer",)))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _cells(one: Examination) -> tuple[str, ...]:
    return (
        f"{one.engine or 'unknown'} {one.version}".strip(),
        str(len(one.models)) if one.models else one.models_problem or "none",
        one.metrics_problem or "yes",
        _cache(one),
        _events(one),
        "chat, text" if one.tokenizes_chat and one.tokenizes_text else "text only" if one.tokenizes_text else "no",
        "not tried" if one.reports_cached is None else "yes" if one.reports_cached else "no",
    )


def _events(one: Examination) -> str:
    told = "unknown" if one.kv_events is None else one.kv_events.where if one.kv_events.enabled else "no"
    return "; ".join([told, *map(seen, one.publishers)])


def _cache(one: Examination) -> str:
    parts = [
        f"{one.kv_tokens:,} tokens" if one.kv_tokens else "",
        f"blocks of {one.block_tokens}" if one.block_tokens else "",
        "keeps no prefixes" if one.prefix_caching is False else "",
    ]
    return ", ".join(part for part in parts if part) or "unknown"
