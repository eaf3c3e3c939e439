"""kvpicker against a no-op ext_proc server on the same transport, behind equal Envoys, in alternating windows."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import access_log, decision, stack
from benchmarks.bodies import LARGE, SMALL
from benchmarks.windows import Case, Contestant, Meter, Pair, Spread, spread
from ext_proc.local import envoy

CASES = [Case(size, connections) for size in (SMALL, LARGE) for connections in (1, 16, 64)]
LATENCY_CASE = Case(SMALL, 1)
COST_CASE = Case(SMALL, 16)

UNLOGGED: dict[str, Any] = {"leases": {"timeout_s": 1}, "log": {"level": "warning"}}
"""Without an access log nothing ends a lease, and its log line belongs to the entry: see README.md."""


class Plan(NamedTuple):
    """How much is measured.

    Attributes:
        rounds: pairs of each case.
        seconds: length of a window.
        repeats: pairs that may be measured again because of foreign load.
        decisions: per fleet size.
        entries: access-log entries per round.
    """

    rounds: int
    seconds: float
    repeats: int
    decisions: int
    entries: int


FULL = Plan(rounds=6, seconds=1.5, repeats=16, decisions=3000, entries=3000)
QUICK = Plan(rounds=2, seconds=0.4, repeats=2, decisions=500, entries=1000)


class Field(NamedTuple):
    """Everything that takes part."""

    product: Contestant
    no_op: Contestant
    plain: Contestant
    logged: Contestant
    meter: Meter


@asynccontextmanager
async def field(plan: Plan, binary: Path, folder: Path) -> AsyncIterator[Field]:
    """Start the processes: one Envoy for each contestant, of the same rendering."""
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        engines_pid, endpoints = await enter(stack.engines(binary))
        product = await enter(stack.kvpicker(_folder(folder, "product"), endpoints, **UNLOGGED))
        logged = await enter(stack.kvpicker(_folder(folder, "logged"), endpoints))
        base = await enter(stack.no_op(folder, endpoints))
        gateways = [
            await enter(stack.gateway(binary, endpoints, product.address)),
            await enter(stack.gateway(binary, endpoints, base.address)),
            await enter(stack.gateway(binary, endpoints, base.address, picks=False)),
            await enter(stack.gateway(binary, endpoints, logged.address, logs=True)),
        ]
        generator = await enter(stack.load_generator())
        ours = (engines_pid, product.pid, logged.pid, base.pid, *(entry.pid for entry in gateways))
        yield Field(
            Contestant(gateways[0], product.pid),
            Contestant(gateways[1], base.pid),
            Contestant(gateways[2]),
            Contestant(gateways[3], logged.pid),
            Meter(generator, ours, plan.seconds, plan.repeats),
        )


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


class Measured(NamedTuple):
    """Pairs of windows.

    Attributes:
        against_no_op: kvpicker and the no-op server, by case.
        against_plain: kvpicker and an Envoy without ext_proc, in LATENCY_CASE.
        against_unlogged: kvpicker with and without the access log, in COST_CASE.
    """

    against_no_op: dict[Case, list[Pair]]
    against_plain: list[Pair]
    against_unlogged: list[Pair]


async def measure(plan: Plan, playing: Field) -> Measured:
    """Go through all cases once a round, the order of a pair reversed every other round."""
    result = Measured({case: [] for case in CASES}, [], [])
    meter = playing.meter
    for number in range(plan.rounds):
        reverse = number % 2 == 1
        for case in CASES:
            pair = await meter.pair(playing.product, playing.no_op, case, base_first=reverse)
            result.against_no_op[case].append(pair)
        pair = await meter.pair(playing.product, playing.plain, LATENCY_CASE, base_first=reverse)
        result.against_plain.append(pair)
        pair = await meter.pair(playing.logged, playing.product, COST_CASE, base_first=reverse)
        result.against_unlogged.append(pair)
        print(f"round {number + 1} of {plan.rounds}", file=sys.stderr)
    return result


def rate_ratio(pair: Pair) -> float:
    """Requests/s as a share of the no-op's."""
    return pair.product.rate / pair.base.rate


def extra_cpu(pair: Pair) -> float:
    """CPU of the server above the no-op's, in microseconds per request."""
    return pair.product.server_us - pair.base.server_us


def added_ms(pair: Pair) -> float:
    """Median latency above the other's, in milliseconds."""
    return pair.product.p50_ms - pair.base.p50_ms


def figures(measured: Measured) -> dict[str, Spread]:
    """Sum up; figures named after a size are over the pairs of all its concurrencies."""
    pairs = measured.against_no_op
    small = [pair for case in CASES if case.size == SMALL for pair in pairs[case]]
    large = [pair for case in CASES if case.size == LARGE for pair in pairs[case]]
    return {
        "no_op_ratio_4k": spread(small, rate_ratio),
        "no_op_ratio_400k": spread(large, rate_ratio),
        "extra_cpu_us_4k": spread(small, extra_cpu),
        "extra_cpu_us_400k": spread(large, extra_cpu),
        "added_ms_p50_c1": spread(measured.against_plain, added_ms),
        "access_log_us_end_to_end": spread(measured.against_unlogged, extra_cpu),
        "switches_per_request": spread(pairs[COST_CASE], lambda pair: pair.product.switches),
        "switches_per_request_no_op": spread(pairs[COST_CASE], lambda pair: pair.base.switches),
    }


def cases(measured: Measured) -> dict[str, dict[str, float]]:
    """Sum each case up by itself."""
    return {
        f"{case.size // 1024}k_c{case.connections}": {
            "ratio": round(spread(pairs, rate_ratio).median, 3),
            "extra_cpu_us": round(spread(pairs, extra_cpu).median, 1),
            "added_ms_p50": round(spread(pairs, added_ms).median, 3),
        }
        for case, pairs in measured.against_no_op.items()
    }


def table(measured: Measured) -> str:
    """Show each case: medians, and the lowest and highest of the pairs."""
    lines = [f"{'':15}{'kvpicker':>40}{'no-op':>40}   {'ratio of req/s':24}extra CPU us"]
    lines.append(f"{'':15}" + f"{'req/s':>8}{'p50':>7}{'p99':>7}{'cpu us':>8}{'switches':>10}" * 2)
    for case, pairs in measured.against_no_op.items():
        line = f"{case.size // 1024:4} KB, c={case.connections:<5}"
        for side in ("product", "base"):
            line += f"{_median(pairs, side, 'rate'):8.0f}{_median(pairs, side, 'p50_ms'):7.2f}"
            line += f"{_median(pairs, side, 'p99_ms'):7.1f}{_median(pairs, side, 'server_us'):8.0f}"
            line += f"{_median(pairs, side, 'switches'):10.1f}"
        lines.append(f"{line}   {spread(pairs, rate_ratio)!s:24}{spread(pairs, extra_cpu)}")
    return "\n".join(lines)


def _median(pairs: list[Pair], side: str, name: str) -> float:
    return spread(pairs, lambda pair: float(getattr(getattr(pair, side), name))).median


async def measure_access_log(plan: Plan, binary: Path, folder: Path) -> dict[str, float]:
    """Measure entries in a kvpicker with its default configuration."""
    async with (
        stack.engines(binary) as (_, endpoints),
        stack.load_generator() as generator,
        stack.kvpicker(folder, endpoints) as server,
    ):
        recorded = await access_log.record(binary, folder, endpoints, generator)
        sent = await access_log.over_grpc(server, recorded, plan.entries, plan.rounds)
    inside = access_log.in_process(recorded, plan.entries)
    return {"access_log_us_per_entry": round(sent, 1), "access_log_us_in_process": round(inside, 1)}


async def run(plan: Plan, *, quiet: bool) -> int:
    """Measure everything and print it; returns the exit status."""
    binary = envoy.find_envoy()
    with tempfile.TemporaryDirectory(prefix="kvpicker-bench-") as name:
        folder = Path(name)
        async with field(plan, binary, folder) as playing:
            measured = await measure(plan, playing)
            meter = playing.meter
        summed = figures(measured)
        result: dict[str, Any] = {name: round(figure.median, 3) for name, figure in summed.items()}
        result |= await measure_access_log(plan, binary, folder)
    result |= {name: round(value, 1) for name, value in decision.medians(plan.decisions).items()}
    result |= {
        "errors": meter.errors,
        "noisy_pairs": meter.noisy,
        "cases": cases(measured),
        "versions": versions(binary),
    }
    if not quiet:
        print(table(measured))
        print("\n".join(f"{name:28} {figure}" for name, figure in summed.items()))
    print(json.dumps(result))
    return 1 if meter.errors else 0


def versions(binary: Path) -> dict[str, str]:
    """Name the versions that the numbers depend on."""
    packages = ("kvpicker", "grpcio", "protobuf", "msgspec")
    return {
        "python": platform.python_version(),
        "envoy": envoy.version(binary),
        **{name: version(name) for name in packages},
    }


def main() -> int:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    arguments = parser.parse_args()
    return asyncio.run(run(QUICK if arguments.quick else FULL, quiet=arguments.json))


if __name__ == "__main__":
    sys.exit(main())
