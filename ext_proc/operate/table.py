"""Prints the endpoints as a table, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 160
"""Columns where the output is no terminal, so that nothing is cut."""


def show(listings: Mapping[str, Sequence[Mapping[str, Any]]], output: TextIO) -> None:
    """Print what each kvpicker listed."""
    console = Console(file=output, highlight=False)
    if not console.is_terminal:
        console = Console(file=output, highlight=False, width=WIDTH)
    for admin, rows in listings.items():
        if len(listings) > 1:
            console.print(Text(admin))
        console.print(_table(rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("endpoint", "pool", "health", "lifecycle"):
        table.add_column(name)
    for name in ("running", "tokens", "waiting", "deadline"):
        table.add_column(name, justify="right")
    for name in ("models", "name"):
        table.add_column(name)
    for row in rows:
        deadline = row["deadline_s"]
        cells = (
            row["address"],
            row["pool"],
            row["state"],
            _stage(row),
            _of(row["running"], row.get("caps", {}).get("requests")),
            _of(row.get("tokens", 0), row.get("caps", {}).get("tokens")),
            _waiting(row.get("queue")),
            "" if deadline is None else f"{deadline:.0f} s",
            ", ".join(row["models"]),
            row["name"] or "",
        )
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table


def _stage(row: Mapping[str, Any]) -> str:
    """Write where an endpoint stands; of one that sleeps how deep, and who says so."""
    sleep = row.get("sleep")
    return f"{row['lifecycle']} ({sleep['level']}: {sleep['evidence']})" if sleep else str(row["lifecycle"])


def _of(used: int, cap: Mapping[str, Any] | None) -> str:
    """Write how much there is, and of how much there may be."""
    return f"{used:,}" if cap is None else f"{used:,} / {cap['limit']:,}"


def _waiting(queue: Mapping[str, int] | None) -> str:
    """Write how many wait for a place in the pool; nothing where nobody does."""
    return f"{queue['requests']:,} / {queue['max_requests']:,}" if queue and queue["requests"] else ""
