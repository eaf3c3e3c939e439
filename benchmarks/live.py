"""Compares strategies on live simulated engines behind the real Envoy with the same run in the simulator."""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import twin
from benchmarks.bodies import MODEL
from benchmarks.live_run import Live, Measured, live
from benchmarks.twin import Contestant
from ext_proc.core.errors import ConfigError
from ext_proc.replay.contestants import contestants
from ext_proc.replay.traces import read_trace
from ext_proc.replay.wiring import wire
from ext_proc.replay.workloads import RECIPES, Order, fitting, make
from ext_proc.sim.fleet.simulation import Simulation
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.workload import Workload

SIMULATED = 5
"""Simulated runs whose means are taken; they differ in how ties are broken and when scrapes come."""

TIE = 1.1
"""Contestants whose simulated means are nearer to each other than this ratio have no order."""

CONTESTANTS = (
    Contestant("least-wait", first_token=True),
    Contestant("least-wait", scrape=True),
    Contestant("least-wait"),
    Contestant("least-request"),
    Contestant("round-robin"),
)
"""The first is what the others are compared with."""


class Scenario(NamedTuple):
    """A workload that takes about a minute.

    Attributes:
        preset: the hardware that the engines play.
        engines: how many.
        speed: engine seconds per wall second.
        rate: requests per engine second, over all engines.
        requests: about how many.
        answers: factor on the length of answers: each token is an event that four processes handle.
        haste: how much faster users think.
    """

    preset: str
    engines: int
    speed: float
    rate: float
    requests: int
    answers: float
    haste: float = 1.0


SCENARIOS = {
    "chat": Scenario("a100-70b-tp4", engines=6, speed=0.35, rate=60.0, requests=650, answers=1 / 16, haste=10.0),
    "synth": Scenario("h100-8b", engines=4, speed=1.0, rate=5.0, requests=250, answers=1 / 4),
    "conv": Scenario("h100-8b", engines=4, speed=1.0, rate=4.0, requests=220, answers=1 / 4),
}


def engine(scenario: Scenario, block_tokens: int) -> EngineOptions:
    """Return what each engine of a scenario is told."""
    return EngineOptions(models=(MODEL,), preset=scenario.preset, speed=scenario.speed, block_size=block_tokens)


def workload(name: str, scenario: Scenario, trace: Path | None, seed: int) -> Workload:
    """Make the workload, in wall seconds; what does not fit into an engine is left out.

    Raises:
        ConfigError: it is made from a trace, and that is missing, unreadable or of the wrong kind.
    """
    traces = () if trace is None else (read_trace(trace),)
    made = make(RECIPES[name], Order(scenario.rate / scenario.haste, scenario.requests, seed, traces))
    made, _ = fitting(made, engine(scenario, made.block_tokens).limits.kv_tokens)
    return twin.paced(twin.shortened(made, scenario.answers), scenario.speed * scenario.haste)


def simulated(contestant: Contestant, scenario: Scenario, made: Workload) -> Measured:
    """Run the twin some times; the means, times in engine seconds."""
    fleet = (twin.preset(engine(scenario, made.block_tokens)),) * scenario.engines
    wiring = functools.partial(wire, contestants(contestant.strategy, "observed")[0])
    found = []
    for seed in range(SIMULATED):
        one = Simulation(made, fleet, wiring, twin.conditions(contestant), seed=seed).run().summary()
        times = [time * scenario.speed for time in (one.ttft_mean, one.ttft_p50, one.ttft_p99)]
        found.append((*times, one.hit_ratio))
    return Measured(*(statistics.fmean(values) for values in zip(*found, strict=True)))


class Result(NamedTuple):
    """A contestant, live and simulated."""

    contestant: Contestant
    live: Live
    simulated: Measured


def order(results: Sequence[Result]) -> list[tuple[str, str, bool]]:
    """Return each pair that the simulator clearly orders: who is faster there, who is slower, and whether live agrees.

    Pairs of one strategy are left out: their sources of news make a difference of a few percent.
    """
    ranked = sorted(results, key=lambda result: result.simulated.mean)
    return [
        (fast.contestant.label, slow.contestant.label, fast.live.measured.mean < slow.live.measured.mean)
        for fast, slow in itertools.combinations(ranked, 2)
        if fast.contestant.strategy != slow.contestant.strategy and slow.simulated.mean > TIE * fast.simulated.mean
    ]


def report(results: Sequence[Result]) -> dict[str, Any]:
    """Print a table in Markdown and what it says; return it for JSON."""
    base = results[0]
    columns = ("mean / p50 / p99 s", "hit", "ratio")
    header = ["contestant", *(f"{kind} {column}" for kind in ("live", "simulated") for column in columns), "overhead"]
    print("\n|", " | ".join(header), "|")
    print("|---" * len(header) + "|")
    rows = {}
    for one in results:
        ratios = [one.live.measured.mean / base.live.measured.mean, one.simulated.mean / base.simulated.mean]
        cells = [*_cells(one.live.measured, ratios[0]), *_cells(one.simulated, ratios[1]), f"{one.live.overhead:.1%}"]
        print("|".join(["", *(f" {cell} " for cell in (one.contestant.label, *cells)), ""]))
        rows[one.contestant.label] = _row(one, ratios)
    pairs = order(results)
    for fast, slow, agrees in pairs:
        print(f"simulated: {fast} before {slow}; live: {'the same' if agrees else 'THE OTHER WAY ROUND'}")
    return {"order_agrees": all(agrees for *_, agrees in pairs), "pairs": len(pairs), "contestants": rows}


def _cells(measured: Measured, ratio: float) -> list[str]:
    times = " / ".join(f"{value:.3f}" for value in (measured.mean, measured.p50, measured.p99))
    return [times, f"{measured.hit_ratio:.3f}", f"{ratio:.2f}"]


def _row(one: Result, ratios: Sequence[float]) -> dict[str, Any]:
    return {
        "live": _rounded(one.live.measured._asdict()),
        "simulated": _rounded(one.simulated._asdict()),
        "live_ratio": round(ratios[0], 3),
        "simulated_ratio": round(ratios[1], 3),
        "overhead": round(one.live.overhead, 4),
        "answered": one.live.answered,
        "machine_cores": round(one.live.cores, 2),
        "seconds": round(one.live.seconds, 1),
        **({"problems": one.live.problems} if one.live.problems else {}),
    }


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in numbers.items()}


async def run(chosen: Sequence[Contestant], scenario: Scenario, made: Workload) -> list[Result]:
    """Run each contestant, simulated and live, and print a line for each."""
    results = []
    for contestant in chosen:
        expected = simulated(contestant, scenario, made)
        measured = await live(contestant, made, engine(scenario, made.block_tokens), scenario.engines)
        results.append(Result(contestant, measured, expected))
        answered = f"{measured.answered} of {len(made.requests)} answered in {measured.seconds:.0f} s"
        print(f"{contestant.label:26} {answered}, {measured.cores:.1f} cores of the machine in use", flush=True)
        print(f"{'':26} live       {measured.measured}\n{'':26} simulated  {expected}", flush=True)
        for problem in measured.problems:
            print(f"{'':26} {problem}", flush=True)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("trace", type=Path, nargs="?", help="a trace of Mooncake's, for synth and conv")
    add("--workload", choices=SCENARIOS, help="(synth with a trace, chat without)")
    add("--speed", type=float, help="engine seconds per wall second (the workload's)")
    add("--rate", type=float, help="requests per engine second over all engines (the workload's)")
    add("--requests", type=int, help="about how many requests (the workload's)")
    add("--seed", type=int, default=1, help="of the workload (%(default)s)")
    add("--only", default="", help="contestants whose label begins so")
    return parser


def main() -> int:
    """Run the command; the last line is JSON; the status is 0 if all was answered and the order agrees."""
    parser = _parser()
    arguments = parser.parse_args()
    name = arguments.workload or ("synth" if arguments.trace else "chat")
    given = {key: value for key in ("speed", "rate", "requests") if (value := getattr(arguments, key)) is not None}
    scenario = SCENARIOS[name]._replace(**given)
    try:
        made = workload(name, scenario, arguments.trace, arguments.seed)
    except ConfigError as error:
        parser.error(str(error))
    tokens = sum(request.output_tokens for request in made.requests)
    print(f"{name}: {len(made.requests)} requests, {tokens} tokens to generate, {scenario}", flush=True)
    chosen = [contestant for contestant in CONTESTANTS if contestant.label.startswith(arguments.only)]
    if not chosen:
        parser.error(f"--only: no label begins with {arguments.only!r}")
    results = asyncio.run(run(chosen, scenario, made))
    result = report(results)
    print(json.dumps({"workload": name, "requests": len(made.requests), "speed": scenario.speed, **result}))
    complete = all(each.live.answered == len(made.requests) for each in results)
    return 0 if complete and result["order_agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
