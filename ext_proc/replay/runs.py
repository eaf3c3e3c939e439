"""Runs contestants on a workload, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.replay.contestants import Contestant
from ext_proc.replay.results import Run, run_of
from ext_proc.replay.wiring import Failures, wire
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.fleet.results import Slo
from ext_proc.sim.fleet.simulation import Simulation
from ext_proc.sim.workload import Workload

_REPORT_EVERY = 200


class RunFailed(KvpickerError):
    """A run did not come to its end."""


class Job(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        workload: what is asked.
        engines: the fleet.
        contestant: who picks.
        seed: of everything random.
        slo: when a request counts as served well.
        warm_up: share of the time of arrivals that does not count.
        conditions: what kvpicker gets to know; the view is the contestant's.
    """

    workload: Workload
    engines: tuple[EnginePreset, ...]
    contestant: Contestant
    seed: int
    slo: Slo
    warm_up: float
    conditions: Conditions = Conditions()


def run(job: Job, progress: Callable[[int], None] = lambda _: None) -> Run:
    """Run one job here.

    Args:
        job: what to run.
        progress: hears now and then how many more requests have ended.
    """
    told = 0

    def tell(ended: int) -> None:
        nonlocal told
        if ended - told >= _REPORT_EVERY or ended == len(job.workload.requests):
            progress(ended - told)
            told = ended

    conditions = msgspec.structs.replace(job.conditions, view=job.contestant.view)
    failures = Failures()
    wiring = partial(wire, job.contestant, observer=failures)
    simulation = Simulation(job.workload, job.engines, wiring, conditions, seed=job.seed, progress=tell)
    return run_of(simulation.run(), job.seed, job.slo, job.warm_up, (failures.count, failures.first))


def run_all(jobs: Sequence[Job], processes: int, progress: Callable[[int], None]) -> list[Run]:
    """Run jobs, several at a time, each in a process of its own; with one process, all in this one.

    Raises:
        RunFailed: a process ended without a result.
    """
    if processes == 1 or len(jobs) == 1:
        return [run(job, progress) for job in jobs]
    found: dict[int, Run] = {}
    left = list(enumerate(jobs))
    running: dict[Connection, int] = {}
    with _children() as start:
        while left or running:
            while left and len(running) < processes:
                number, job = left.pop(0)
                running[start(job)] = number
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)  # noqa: S101  nothing else was waited for
                said = _received(pipe, jobs[running[pipe]])
                if isinstance(said, Run):
                    found[running.pop(pipe)] = said
                else:
                    progress(said)
    return [found[number] for number in range(len(jobs))]


@contextmanager
def _children() -> Iterator[Callable[[Job], Connection]]:
    """Give a function that starts a job and returns the pipe it reports on; none outlives the block."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    # Its start unblocks the signals that are to stay blocked below.
    resource_tracker.ensure_running()

    def start(job: Job) -> Connection:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(job, sender), daemon=True)
        # A child inherits the mask: Ctrl-C reaches it too, and it is for the parent to end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.close()
        processes.append(process)
        return receiver

    try:
        yield start
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _received(pipe: Connection, job: Job) -> Run | int:
    try:
        said: Run | int | str = pipe.recv()
    except EOFError:
        raise RunFailed(f"the process that ran {job.contestant.label} with seed {job.seed} is gone") from None
    if isinstance(said, str):
        raise RunFailed(f"{job.contestant.label} with seed {job.seed}: {said}")
    return said


def _child(job: Job, pipe: Connection) -> None:
    """Run a job and report on a pipe: numbers of ended requests, then the result, or the text of what went wrong."""
    try:
        pipe.send(run(job, pipe.send))
    except BrokenPipeError:
        return  # the parent is gone; nobody waits
    except Exception as error:  # noqa: BLE001  the parent tells, whatever it is
        pipe.send(f"{type(error).__name__}: {error}")
