"""Who is compared: name, and what it chooses by and gets to know."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from benchmarks.independent.baselines import CacheAware, Oracle, TtftOracle
from benchmarks.independent.engine import Engine
from benchmarks.independent.fleet import Fleet, Outage, Result
from benchmarks.independent.hardware import Hardware
from benchmarks.independent.router import Picker, Router, View
from benchmarks.independent.workloads import KINDS

ENGINES = 8

Contender: TypeAlias = View | type[TtftOracle | Oracle]

CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        "ttft-oracle": TtftOracle,
        "oracle": Oracle,
        "events": View(events=True),
        "observed": View(),
        "events-scrape": View(events=True, first_tokens=False),
        "observed-scrape": View(first_tokens=False),
        "gie": View(
            strategy="weighted",
            parameters={"scorers": {"prefix": 3, "queue": 2, "kv_usage": 2}},
            scrape_s=0.2,
        ),
        "cache-aware": View(strategy=CacheAware.name),
        "prefix-affinity": View(strategy="prefix-affinity"),
        "least-request": View(strategy="least-request"),
        "round-robin": View(strategy="round-robin"),
    }
)
"""`events` and `observed` are least-wait by the engines' reports and by its own history, told of first tokens.

Those with `-scrape` learn from metrics that are read every second instead, as kvpicker does without `--first-token`.
"""


class Case(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        workload: its name.
        contender: who chooses.
        load: arrivals as a share of what the fleet can serve.
        seed: of the workload and of ties.
        view: in place of the contender's.
        slow: how many times as long each engine takes; empty for 1.
        outage: of an engine, if any.
    """

    workload: str
    contender: str
    load: float
    seed: int
    view: View | None = None
    slow: tuple[float, ...] = ()
    outage: Outage | None = None


def simulate(case: Case, traces: Path) -> Result:
    """Run one case."""
    kind = KINDS[case.workload]
    hardware = msgspec.structs.replace(Hardware(), blocks=Hardware().blocks * kind.memory)
    fleet = [hardware.slower(factor) for factor in case.slow or (1.0,) * ENGINES]
    rate = case.load * kind.capacity * ENGINES
    workload = kind.make(traces, rate, random.Random(f"{case.workload} {case.seed}"))  # noqa: S311  to be repeatable
    route, scrape_s = _router(case.view or CONTENDERS[case.contender], case.seed)
    return Fleet(fleet, route, scrape_s).run(workload, case.outage)


def _router(contender: Contender, seed: int) -> tuple[Callable[[Sequence[Engine]], Router], float]:
    if not isinstance(contender, View):
        return contender, float("inf")
    view = contender
    generator = random.Random(seed)  # noqa: S311  to be repeatable
    return lambda engines: Picker(view, engines, generator), view.scrape_s
