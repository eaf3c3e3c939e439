"""What the option `--first-token` of the lean profile costs, against the same kvpicker behind an Envoy without it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import stack
from benchmarks.bodies import SMALL
from benchmarks.windows import Case, Contestant, Meter, Pair, spread
from benchmarks.wire import UNLOGGED, added_ms, extra_cpu, versions
from ext_proc.local import envoy

SENT = "http.entry.ext_proc.stream_msgs_sent"
STARTED = "http.entry.ext_proc.streams_started"


class Plan(NamedTuple):
    """How much is measured: pairs of each case, seconds of a window, and pairs that may be measured again."""

    rounds: int
    seconds: float
    repeats: int


FULL = Plan(rounds=6, seconds=1.5, repeats=12)
QUICK = Plan(rounds=2, seconds=0.4, repeats=0)


def extra_envoy_cpu(pair: Pair) -> float:
    """CPU of Envoy above the other's, in microseconds per request."""
    return pair.product.envoy_us - pair.base.envoy_us


async def messages(contestant: Contestant) -> float:
    """Return the messages to kvpicker per exchange since Envoy began."""
    stats = await contestant.gateway.stats("http.entry.ext_proc.")
    return round(stats[SENT] / max(stats[STARTED], 1), 3)


@asynccontextmanager
async def contestant(binary: Path, folder: str, endpoints: Sequence[str], *, shown: bool) -> AsyncIterator[Contestant]:
    """Run a kvpicker behind an Envoy of its own, with the option or without."""
    async with (
        stack.kvpicker(Path(folder), endpoints, **UNLOGGED) as server,
        stack.gateway(binary, endpoints, server.address, first_token=shown) as gateway,
    ):
        yield Contestant(gateway, server.pid)


async def measure(plan: Plan, binary: Path, folders: tuple[str, str]) -> dict[str, Any]:
    """Measure all cases, streams first, the order of a pair reversed every other time."""
    async with (
        stack.engines(binary, stream=True) as (engines_pid, endpoints),
        contestant(binary, folders[0], endpoints, shown=True) as product,
        contestant(binary, folders[1], endpoints, shown=False) as base,
        stack.load_generator() as generator,
    ):
        pids = [pid for one in (product, base) for pid in (one.server, one.gateway.pid) if pid is not None]
        meter = Meter(generator, (engines_pid, *pids), plan.seconds, plan.repeats)
        streams = await pairs(plan, meter, product, base, stream=True)
        counts = {"messages": await messages(product), "messages_without": await messages(base)}
        whole = await pairs(plan, meter, product, base, stream=False)
        sums = {_name(case): _sums(measured) for case, measured in (streams | whole).items()}
        return {**counts, **sums, "errors": meter.errors, "noisy_pairs": meter.noisy}


async def pairs(
    plan: Plan, meter: Meter, product: Contestant, base: Contestant, *, stream: bool
) -> dict[Case, list[Pair]]:
    """Measure the cases that ask for streams, or those that do not."""
    cases = [Case(SMALL, connections, stream) for connections in (1, 16, 64)]
    measured: dict[Case, list[Pair]] = {case: [] for case in cases}
    for number in range(plan.rounds):
        for case in cases:
            measured[case].append(await meter.pair(product, base, case, base_first=number % 2 == 1))
    return measured


def _name(case: Case) -> str:
    return f"{'stream' if case.stream else 'whole'}_c{case.connections}"


def _sums(measured: list[Pair]) -> dict[str, str]:
    figures: dict[str, Callable[[Pair], float]] = {
        "extra_cpu_us": extra_cpu,
        "extra_envoy_cpu_us": extra_envoy_cpu,
        "cpu_us_without": lambda pair: pair.base.server_us,
        "envoy_cpu_us_without": lambda pair: pair.base.envoy_us,
        "added_ms_p50": added_ms,
    }
    return {name: str(spread(measured, figure)) for name, figure in figures.items()}


async def run(plan: Plan) -> int:
    """Measure and print; returns the exit status."""
    binary = envoy.find_envoy()
    with (
        tempfile.TemporaryDirectory(prefix="kvpicker-bench-") as first,
        tempfile.TemporaryDirectory(prefix="kvpicker-bench-") as second,
    ):
        result = await measure(plan, binary, (first, second))
    for case, figures in result.items():
        if isinstance(figures, dict):
            print(case, *(f"{name} {figure}" for name, figure in figures.items()), sep="  ")
    print(json.dumps({**result, "versions": versions(binary)}))
    return 1 if result["errors"] else 0


def main() -> int:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run: does it work at all?")
    arguments = parser.parse_args()
    return asyncio.run(run(QUICK if arguments.quick else FULL))


if __name__ == "__main__":
    sys.exit(main())
