"""The parts of kvpicker that decide and observe, wired in process as the service wires them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.bodies import MODEL, PATH, SMALL, chat_bodies
from ext_proc.assembly import Core, build_core
from ext_proc.config import Config, LogConfig, PoolConfig
from ext_proc.core.model import InferenceRequest
from ext_proc.core.observer import NoObserver, Observer
from ext_proc.core.pool import EndpointSpec
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.ops.decisions import DecisionRing
from ext_proc.ops.fan_out import FanOut
from ext_proc.ops.limited_log import LimitedLog
from ext_proc.ops.log_observer import LogObserver
from ext_proc.ops.logs import LineWriter, configure
from ext_proc.ops.metrics import Metrics

KV_TOKENS = 450_000


class Parts(NamedTuple):
    """A fleet's decision parts with the observers of the product."""

    core: Core
    observer: Observer
    metrics: Metrics


@contextmanager
def observed_fleet(endpoints: int) -> Iterator[Parts]:
    """Make a fleet whose log lines are written, to /dev/null."""
    with Path("/dev/null").open("wb") as output:
        metrics = Metrics(lambda: core.registry.snapshot.models)
        lines = LineWriter(output)
        log = LimitedLog(configure("info", "json", lines), LogConfig().max_per_second)
        observer = FanOut(metrics, DecisionRing(), LogObserver(log, lines))
        core = fleet(endpoints, observer)
        yield Parts(core, observer, metrics)


def fleet(endpoints: int, observer: Observer | None = None) -> Core:
    """Make the parts of the decision with so many endpoints of one pool and one model."""
    core = build_core(Config(pools={"bench": PoolConfig()}), observer or NoObserver())
    specs = [
        EndpointSpec(address=f"10.0.{number >> 8}.{number & 255}:8000", models=frozenset({MODEL}), kv_tokens=KV_TOKENS)
        for number in range(endpoints)
    ]
    core.follow(core.registry.replace("bench", specs))
    return core


def requests(size: int = SMALL) -> list[InferenceRequest]:
    """Understand the bodies of a size."""
    route = classify("POST", PATH)
    assert route is not None  # noqa: S101  PATH is a known path
    return [parse(route, RequestHead(path=PATH), body, complete=True) for body in chat_bodies(size)]
