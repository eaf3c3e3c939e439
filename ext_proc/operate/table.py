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
    for name in ("running", "deadline"):
        table.add_column(name, justify="right")
    for name in ("models", "name"):
        table.add_column(name)
    for row in rows:
        deadline = row["deadline_s"]
        cells = (
            row["address"],
            row["pool"],
            row["state"],
            row["lifecycle"],
            f"{row['running']:,}",
            "" if deadline is None else f"{deadline:.0f} s",
            ", ".join(row["models"]),
            row["name"] or "",
        )
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table
