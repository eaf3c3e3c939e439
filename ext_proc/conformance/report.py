"""Prints what came of the checks, for people and for programs."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.conformance.check import Check
from ext_proc.conformance.modes import Mode
from ext_proc.conformance.suite import Result, Verdict

WIDTH = 160
"""Columns where the output is no terminal, so that little is cut."""

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.SKIPPED: "yellow"}


def show(target: str, results: Sequence[Result], output: TextIO) -> None:
    """Print a line for each check and what came of it, with the requirement where it is not met, and the sums."""
    console = _console(output)
    table = Table(box=None, pad_edge=False)
    for column in ("check", "level", "result", "modes", "evidence"):
        table.add_column(column, overflow="fold")
    for group in _grouped(results):
        first = group[0]
        modes = " ".join(result.mode for result in group if result.mode is not Mode.ANY)
        evidence = Text(first.evidence)
        if first.verdict is Verdict.FAILED:
            evidence.append(f"\nrequired: {first.check.requirement} ({first.check.source})", style="dim")
        verdict = Text(first.verdict, style=_STYLES[first.verdict])
        table.add_row(first.check.id, first.check.level, verdict, modes, evidence)
    console.print(table)
    console.print(f"\n{target}: {summary(results)}", markup=False)


def summary(results: Sequence[Result]) -> str:
    """Say how many checks came to what."""
    counts = Counter(result.verdict for result in results)
    should = sum(result.verdict is Verdict.FAILED and not result.breaks() for result in results)
    aside = f" ({should} of them only SHOULD)" if should else ""
    failed = f"{counts[Verdict.FAILED]} failed{aside}"
    took = sum(result.seconds for result in results)
    return f"{counts[Verdict.PASSED]} passed, {failed}, {counts[Verdict.SKIPPED]} skipped, in {took:.1f} s"


def show_json(target: str, results: Sequence[Result], output: TextIO) -> None:
    """Print one JSON object."""
    counts = Counter(result.verdict for result in results)
    found = {
        "target": target,
        **{verdict.value: counts[verdict] for verdict in Verdict},
        "results": [
            {
                "id": result.check.id,
                "mode": result.mode.value,
                "level": result.check.level.value,
                "verdict": result.verdict.value,
                "evidence": result.evidence,
                "seconds": round(result.seconds, 3),
                "requirement": result.check.requirement,
                "source": result.check.source,
            }
            for result in results
        ],
    }
    output.write(json.dumps(found, indent=2) + "\n")


def list_checks(checks: Iterable[Check], output: TextIO) -> None:
    """Print what each check requires."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "level", "modes", "requirement", "source"):
        table.add_column(column, overflow="fold")
    for check in checks:
        modes = " ".join(check.modes)
        table.add_row(check.id, check.level, modes, Text(check.requirement), Text(check.source))
    _console(output).print(table)


@contextlib.contextmanager
def progress(output: TextIO) -> Iterator[Callable[[str], None]]:
    """Yield what shows the check that runs, on a terminal only."""
    console = Console(file=output)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Put modes in which a check passed together, and those in which it failed in the same way."""
    groups: dict[tuple[str, Verdict, str], list[Result]] = {}
    for result in results:
        same = "" if result.verdict is Verdict.PASSED else result.evidence
        groups.setdefault((result.check.id, result.verdict, same), []).append(result)
    return list(groups.values())


def _console(output: TextIO) -> Console:
    console = Console(file=output, highlight=False)
    return console if console.is_terminal else Console(file=output, highlight=False, width=WIDTH)
