"""Tables on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from ext_proc.ops.tables import print_table


def printed(width: int) -> list[str]:
    """Print a row of a long label and a figure on a terminal of that width."""
    table = Table()
    table.add_column("label", overflow="fold")
    table.add_column("seconds", no_wrap=True)
    table.add_row("x" * 60, "1.25 [1.0-1.5]")
    output = io.StringIO()
    print_table(Console(file=output, width=width), table)
    return output.getvalue().splitlines()


@pytest.mark.parametrize(("width", "label"), [(200, 60), (60, 39), (30, 24), (5, 24)])
def test_words_fold_and_figures_stay_whole(width: int, label: int) -> None:
    """Down to 24 characters of words; below, lines are longer than the terminal is wide."""
    lines = printed(width)
    assert max(line.count("x") for line in lines) == label
    assert sum(line.count("x") for line in lines) == 60
    assert any("1.25 [1.0-1.5]" in line for line in lines)
    assert any("seconds" in line for line in lines)
