"""Compares strategies in the independent simulator; the last line is one JSON object.

python -m benchmarks.independent TRACES [--loads .8 .95] [--seeds 3] [--workloads conv …] [--contenders events …]
    python -m benchmarks.independent TRACES --points
python -m benchmarks.independent TRACES --calibrate
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.independent import points, report
from benchmarks.independent.contenders import CONTENDERS, Case, simulate
from benchmarks.independent.fleet import Result
from benchmarks.independent.workloads import KINDS

_ENOUGH = 0.85
"""Goodput that `ttft-oracle` keeps at load 1."""

_STEPS = 6

Table = dict[str, dict[str, dict[str, list[Result]]]]
"""Results of all seeds by load, workload and contender."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.independent", description=__doc__)
    parser.add_argument("traces", type=Path, help="directory of the Mooncake and Azure traces")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 0.95])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--points", action="store_true", help="what if things go wrong, in place of the tables")
    parser.add_argument("--calibrate", action="store_true", help="find the arrival rates of load 1")
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(options.processes) as pool:
        if options.calibrate:
            capacities = pool.map(partial(_capacity, options.traces), options.workloads)
            found = dict(zip(options.workloads, capacities, strict=True))
            print(msgspec.json.encode(found).decode())
            return
        if options.points:
            run = partial(pool.map, partial(simulate, traces=options.traces))
            workloads = [each for each in options.workloads if each in points.WORKLOADS]
            print("", *points.lines(run, workloads, options.seeds), sep="\n")
            return
        cases = [
            Case(workload, contender, load, seed)
            for load, workload, seed, contender in product(
                options.loads, options.workloads, range(1, options.seeds + 1), options.contenders
            )
        ]
        table = _collect(zip(cases, pool.map(partial(simulate, traces=options.traces), cases), strict=True))
    for load, rows in table.items():
        print(f"\nLoad {load}: mean TTFT in ms / goodput\n", *report.times(rows), sep="\n")
        print(f"\nLoad {load}: ratios of mean TTFT\n", *report.ratios(rows, float(load)), sep="\n")
    print(msgspec.json.encode(table).decode())


def _collect(results: Iterable[tuple[Case, Result]]) -> Table:
    table: Table = {}
    for case, result in results:
        row = table.setdefault(f"{case.load:g}", {}).setdefault(case.workload, {})
        row.setdefault(case.contender, []).append(result)
    return table


def _capacity(traces: Path, workload: str) -> float:
    """Return the requests per second and engine at load 1, by bisection between 0.6 and 1.8 times the known."""
    low, high = 0.6, 1.8
    for _ in range(_STEPS):
        load = (low * high) ** 0.5
        goodput = fmean(simulate(Case(workload, "ttft-oracle", load, seed), traces).goodput for seed in (1, 2))
        low, high = (load, high) if goodput >= _ENOUGH else (low, load)
    return round(KINDS[workload].capacity * low, 3)


if __name__ == "__main__":
    main()
