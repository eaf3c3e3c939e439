"""Runs an analysis from files to a report, and puts the report where it is wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ext_proc.analyze.formats import LineReader
from ext_proc.analyze.options import Options
from ext_proc.analyze.record import Record
from ext_proc.analyze.report import Report, Source
from ext_proc.analyze.survey import Survey
from ext_proc.analyze.tables import show
from ext_proc.analyze.traffic import Traffic
from ext_proc.assembly import block_sizes
from ext_proc.core.errors import ConfigError
from ext_proc.core.hashing import PromptHasher

_ROUND = 500


def analyse(names: Sequence[str], options: Options, blocks: tuple[int, int]) -> Report:
    """Analyse files.

    Args:
        names: files, `-` for standard input.
        options: what is asked.
        blocks: bytes of the first and of the last blocks, as in the section `index` of the configuration.

    Raises:
        ConfigError: a file cannot be opened, or no file holds a request.
    """
    traffic = Traffic(names, LineReader(PromptHasher(block_sizes(*blocks))), sys.stdin.buffer)
    survey = Survey(options)
    for record in _watched(traffic.records()):
        survey.add(record)
    if not survey.requests:
        raise ConfigError(_nothing_found(names, traffic, survey))
    source = Source(
        files=tuple(names),
        lines=traffic.lines,
        requests=survey.requests,
        other_models=survey.other_models,
        unusable=dict(traffic.unusable),
        examples=tuple(traffic.examples),
    )
    return survey.report(source)


def print_report(report: Report) -> None:
    """Print the report to standard output."""
    show(Console(highlight=False), report)


def _nothing_found(names: Sequence[str], traffic: Traffic, survey: Survey) -> str:
    where = ", ".join(names)
    if survey.other_models:
        return f"{where}: no request of the models that --model names; {survey.other_models} of other models"
    if not traffic.examples:
        return f"{where}: no request; give a file with one JSON object a line"
    return f"{traffic.examples[0]}, and no other line is better; see kvpicker analyze --help for what lines may hold"


def _watched(records: Iterable[Record]) -> Iterator[Record]:
    """Show progress on a terminal while records are read."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("requests"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        for number, record in enumerate(records):
            if not number % _ROUND:
                progress.update(task, completed=number)
            yield record
