"""Prints tables whose figures and heads stay whole on a terminal of any width."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

_FOLDED = 24
"""Characters that a column of words keeps before the lines of the table grow longer than the terminal is wide."""

_ENDLESS = 100_000


def print_table(console: Console, table: Table) -> None:
    """Print a table; on a narrow terminal columns that may wrap are folded, and the rest goes on in the next line.

    Left alone, rich would break and cut figures too.
    """
    natural = Measurement.get(console, console.options.update_width(_ENDLESS), table).maximum
    spare = sum(max(_longest(column) - _FOLDED, 0) for column in table.columns if not column.no_wrap)
    if console.width < natural - spare:
        table.width = natural - spare
    console.print(table, crop=False)


def _longest(column: Column) -> int:
    return max(len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
