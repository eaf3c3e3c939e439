"""The command `kvpicker replay`: reads or makes the workload, runs every contestant, and reports."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from statistics import fmean
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ext_proc.core.errors import ConfigError
from ext_proc.ops.text import counted, printable
from ext_proc.ops.whole_file import whole_file
from ext_proc.replay import page, shaping, table, workloads
from ext_proc.replay.options import Options, read_options
from ext_proc.replay.results import Engines, Replayed, Report, Run, rows
from ext_proc.replay.runs import Job, RunFailed, run_all
from ext_proc.replay.traces import Trace, read_trace
from ext_proc.sim.workload import SimRequest, Workload

FAULT: Final = 1
_PLAIN_WIDTH: Final = 140


def run(arguments: argparse.Namespace) -> int:
    """Replay and report; returns the exit status.

    Raises:
        ConfigError: something the user chose cannot be used.
    """
    options = read_options(arguments)
    with whole_file(options.html, options.traces, "--html") as write_page:
        return _replay(options, write_page)


def _replay(options: Options, write_page: Callable[[str], None]) -> int:
    stream = sys.stderr if options.json else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    traces = tuple(read_trace(path, options.format, _limit(options)) for path in options.traces)
    room = min(engine.kv_tokens for engine in options.engines)
    made = [workloads.fitting(_workload(options, traces, seed), room) for seed in options.seeds]
    if not all(workload.requests for workload, _ in made):
        raise ConfigError(f"no request fits into the {room} tokens of an engine", path="--kv-tokens")
    replayed = _replayed(made[0], traces)
    try:
        runs = _run(options, [workload for workload, _ in made])
    except RunFailed as error:
        sys.stderr.write(f"kvpicker: {error}\n")
        return FAULT
    report = _report(options, replayed, runs)
    table.show(console, report)
    if options.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + os.linesep)
    if options.html is not None:
        write_page(page.render(report, [own[0].series for own in runs]))
    return _told_failures(options, report, runs)


def _told_failures(options: Options, report: Report, runs: Sequence[Sequence[Run]]) -> int:
    """Warn of strategies that failed; one that did nothing else makes the whole a failure."""
    for failure in table.failures(report):
        sys.stderr.write(f"kvpicker: warning: {failure}\n")
    vain = [
        contestant
        for contestant, own in zip(options.contestants, runs, strict=True)
        if all(run.has_only_failed for run in own)
    ]
    for contestant in vain:
        sys.stderr.write(f"kvpicker: {printable(contestant.label)} failed on every request: its numbers mean nothing\n")
    return FAULT if vain else 0


def _limit(options: Options) -> int | None:
    """How much of a trace is read: a named workload takes what it needs from the whole of it."""
    return options.requests if options.recipe is None else None


def _workload(options: Options, traces: tuple[Trace, ...], seed: int) -> Workload:
    recipe = options.recipe
    if recipe is None:
        return workloads.from_trace(traces[0], load=options.load, rate=options.rate, seed=seed)
    rate = options.rate
    if rate is None:
        rate = options.load * recipe.full_rate(traces) * options.reference_engines
    order = workloads.Order(rate, options.requests or recipe.count, seed, traces)
    return workloads.make(recipe, order)


def _run(options: Options, made: Sequence[Workload]) -> list[list[Run]]:
    """Return for each contestant its runs, in the order of the seeds."""
    # Users of made workloads name no conversations; of a trace we know whether they did.
    are_named = options.recipe is None and any(request.session for request in made[0].requests)
    conditions = msgspec.structs.replace(options.conditions, sessions=are_named)
    jobs = [
        Job(workload, options.engines, contestant, seed, options.slo, options.warm_up, conditions)
        for contestant in options.contestants
        for workload, seed in zip(made, options.seeds, strict=True)
    ]
    total = sum(len(job.workload.requests) for job in jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"replaying {total} requests in {len(jobs)} runs", total=total)
        found = run_all(jobs, options.jobs, lambda ended: bar.advance(task, ended))
    count = len(options.seeds)
    return [found[place : place + count] for place in range(0, len(found), count)]


def _replayed(made: tuple[Workload, int], traces: Sequence[Trace]) -> Replayed:
    workload, too_long = made
    requests = workload.requests
    notes = [note for trace in traces for note in (trace.note, _about_unusable(trace)) if note]
    if too_long:
        notes.append(f"left out since an engine's memory cannot hold them: {counted(too_long, 'request')}")
    return Replayed(
        name=workload.name,
        format=traces[0].format if traces else "",
        requests=len(requests),
        block_tokens=workload.block_tokens,
        prompt_tokens_mean=round(fmean(request.prompt_tokens for request in requests), 1),
        output_tokens_mean=round(fmean(request.output_tokens for request in requests), 1),
        rate=round(_rate(requests), 4),
        unusable_lines=sum(trace.unusable for trace in traces),
        too_long=too_long,
        notes=tuple(dict.fromkeys(notes)),
    )


def _rate(requests: Sequence[SimRequest]) -> float:
    """Return the requests per second; the pauses within sessions are not known beforehand, so all are counted."""
    openers = [request for request in requests if request.after is None]
    seconds = shaping.duration(openers)
    return len(requests) / seconds if seconds else 0.0


def _about_unusable(trace: Trace) -> str:
    count, first = trace.unusable, trace.first_unusable
    return f"{counted(count, 'line')} could not be used; the first: {first}" if count else ""


def _report(options: Options, replayed: Replayed, runs: Sequence[Sequence[Run]]) -> Report:
    kinds = Counter((engine.name, engine.kv_tokens) for engine in options.engines)
    return Report(
        version=version("kvpicker"),
        workload=replayed,
        engines=tuple(Engines(name, count, kv_tokens) for (name, kv_tokens), count in kinds.items()),
        seeds=options.seeds,
        warm_up=options.warm_up,
        slo=options.slo,
        strategies=rows(options.contestants, runs),
    )
