"""Compares least-wait with what knows everything and with other pickers, on simulated fleets, against fixed bars."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ext_proc.replay.contestants import contestants
from ext_proc.replay.traces import Trace, read_trace
from ext_proc.replay.wiring import wire
from ext_proc.replay.workloads import RECIPES, Order, from_trace, make
from ext_proc.sim.fleet.conditions import Conditions, Restart, Slowdown, View
from ext_proc.sim.fleet.presets import PRESETS, EnginePreset
from ext_proc.sim.fleet.results import Summary
from ext_proc.sim.fleet.simulation import Simulation
from ext_proc.sim.workload import Workload

ENGINES = 8
WARM_UP = 0.1
"""Share of the time of arrivals that does not count: all caches are cold at first."""
H100, L40S = PRESETS["h100-8b"], PRESETS["l40s-8b"]
CONVERSATION, SYNTHETIC = "mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"
LENGTHS = ("AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv")
TRACES = {
    "conv": (CONVERSATION,),
    "convL": (CONVERSATION,),
    "synth": (SYNTHETIC,),
    "chat": (),
    "hot": (),
    "uniq": LENGTHS,
    "bursty": (CONVERSATION,),
}
"""Workloads and the files that each is made from."""


class Contestant(NamedTuple):
    """Who picks, and under which conditions."""

    strategy: str
    conditions: Conditions


class Bars(NamedTuple):
    """What is expected of a workload at loads 0.8 and 0.95: at most, at most, then at least, and goodput lost at most.

    Times to first token of events and of observed over oracle; of gie, least-request and round-robin over observed.
    """

    events: tuple[float, float]
    observed: tuple[float, float]
    gie: tuple[float, float]
    least_request: tuple[float, float]
    round_robin: tuple[float, float]
    goodput_events: float
    goodput_observed: float


BARS = {
    "conv": Bars((1.05, 1.05), (1.06, 1.06), (1.5, 1.5), (1.7, 1.7), (3.5, 3.5), 0.01, 0.01),
    "convL": Bars((1.05, 1.05), (1.08, 1.08), (1.7, 1.7), (2.3, 2.3), (4.5, 4.5), 0.02, 0.02),
    "synth": Bars((1.08, 1.08), (1.11, 1.11), (1.35, 1.35), (2.1, 2.1), (3.5, 3.5), 0.02, 0.02),
    "chat": Bars((1.08, 1.20), (1.12, 1.6), (1.5, 1.4), (4.2, 9.0), (7.0, 12.0), 0.01, 0.06),
    "hot": Bars((1.00, 1.00), (1.05, 1.05), (40.0, 40.0), (0.92, 0.92), (0.88, 0.88), 0.0, 0.0),
    "uniq": Bars((1.12, 1.12), (1.12, 1.12), (4.8, 4.8), (2.4, 2.4), (1.45, 1.45), 0.01, 0.01),
    "bursty": Bars((1.10, 1.10), (1.13, 1.13), (1.4, 1.4), (1.8, 1.8), (2.4, 2.4), 0.03, 0.03),
}

TRUTH = f"least-wait:learn=false:prefill_rate={H100.prefill_rate}:attention_tokens={H100.attention_tokens}"
EVENTS, OBSERVED, ORACLE = (Conditions(view=view) for view in (View.EVENTS, View.OBSERVED, View.ORACLE))
TRUE_RATES = msgspec.structs.replace(ORACLE, rate_factor=1.0)
CONTESTANTS = {
    "oracle": Contestant(TRUTH, TRUE_RATES),
    "events": Contestant("least-wait", EVENTS),
    "observed": Contestant("least-wait", OBSERVED),
    "gie": Contestant("gie", Conditions(scrape_interval=0.2)),
    "least-request": Contestant("least-request", OBSERVED),
    "round-robin": Contestant("round-robin", OBSERVED),
    "lmetric": Contestant("lmetric", EVENTS),
    "ttft-oracle": Contestant("ttft-oracle", ORACLE),
}


class Job(NamedTuple):
    """One run."""

    traces: Path
    workload: str
    load: float
    seed: int
    strategy: str
    conditions: Conditions
    engines: tuple[EnginePreset, ...]


def fleet(*, mixed: bool = False) -> tuple[EnginePreset, ...]:
    """Return eight H100, or four of them and four L40S."""
    return (H100,) * (ENGINES // 2) + (L40S if mixed else H100,) * (ENGINES // 2)


@functools.lru_cache(maxsize=4)
def trace(path: Path) -> Trace:
    """Read a trace once per process."""
    return read_trace(path)


def run(job: Job) -> Summary:
    """Run one job."""
    recipe = RECIPES[job.workload]
    traces = tuple(trace(job.traces / name) for name in TRACES[job.workload])
    speed = sum(engine.prefill_rate for engine in job.engines) / H100.prefill_rate
    order = Order(job.load * recipe.full_rate(traces) * speed, recipe.count, job.seed, traces)
    engines = [msgspec.structs.replace(one, kv_tokens=one.kv_tokens * recipe.kv_factor) for one in job.engines]
    contestant = contestants(job.strategy, job.conditions.view)[0]
    wiring = functools.partial(wire, contestant)
    workload = fitting(make(recipe, order), min(engine.kv_tokens for engine in engines))
    result = Simulation(workload, engines, wiring, job.conditions, seed=job.seed).run()
    warm = WARM_UP * max(record.arrived for record in result.records)
    counted = tuple(record for record in result.records if record.arrived >= warm)
    return msgspec.structs.replace(result, records=counted).summary()


def fitting(workload: Workload, kv_tokens: int) -> Workload:
    """Leave out of open arrivals what the smallest engine could never hold."""
    if any(request.after is not None for request in workload.requests):
        return workload
    found = tuple(one for one in workload.requests if one.prompt_tokens + one.output_tokens < kv_tokens)
    return msgspec.structs.replace(workload, requests=found)


class Lab:
    """Runs jobs in several processes, each job once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.workloads = [
            name for name in options.workloads if all((options.traces / file).exists() for file in TRACES[name])
        ]
        self.loads: Sequence[float] = options.loads
        self.seeds: Sequence[int] = options.seeds
        self._traces: Path = options.traces
        self._jobs: int = options.jobs
        self._done: dict[Job, Summary] = {}

    def job(
        self, workload: str, load: float, seed: int, who: Contestant, engines: tuple[EnginePreset, ...] | None = None
    ) -> Job:
        """Describe a run."""
        return Job(self._traces, workload, load, seed, who.strategy, who.conditions, engines or fleet())

    def run(self, jobs: Iterable[Job]) -> None:
        """Run what has not been run."""
        wanted = [job for job in dict.fromkeys(jobs) if job not in self._done]
        with multiprocessing.get_context("spawn").Pool(self._jobs) as pool:
            for number, (job, summary) in enumerate(zip(wanted, pool.imap(run, wanted), strict=True), 1):
                self._done[job] = summary
                print(f"\r{number} of {len(wanted)} runs", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)

    def summaries(self, workload: str, load: float, who: Contestant, mixed: bool = False) -> list[Summary]:
        """Return the results of each seed."""
        return [self._done[self.job(workload, load, seed, who, fleet(mixed=mixed))] for seed in self.seeds]

    def ratio(self, workload: str, load: float, above: Contestant, below: Contestant, mixed: bool = False) -> float:
        """Return the mean, over the seeds, of a ratio of mean times to first token."""
        pairs = zip(
            self.summaries(workload, load, above, mixed), self.summaries(workload, load, below, mixed), strict=True
        )
        return statistics.fmean(one.ttft_mean / other.ttft_mean for one, other in pairs)

    def over_all(self, above: Contestant, below: Contestant, mixed: bool = False) -> float:
        """Return the geometric mean of that ratio over workloads and loads."""
        cells = [(workload, load) for workload in self.workloads for load in self.loads]
        return statistics.geometric_mean(self.ratio(*cell, above, below, mixed) for cell in cells)


def absolute(lab: Lab) -> None:
    """Print what every contestant reached."""
    for load in lab.loads:
        print(f"\nLoad {load}: mean TTFT s / p99 s / TPOT ms / hit / goodput / balance\n")
        print("|".join(["", " contestant ", *(f" {name} " for name in lab.workloads), ""]))
        print("|---" * (len(lab.workloads) + 1) + "|")
        for name, who in CONTESTANTS.items():
            cells = [_cell(lab.summaries(workload, load, who)) for workload in lab.workloads]
            print("|".join(["", f" {name} ", *cells, ""]))


def _cell(found: Sequence[Summary]) -> str:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(summary, field) for summary in found)

    first = f"{mean('ttft_mean'):.3g} / {mean('ttft_p99'):.3g} / {1000 * mean('tpot_mean'):.0f}"
    return f" {first} / {mean('hit_ratio'):.2f} / {mean('goodput'):.3f} / {mean('balance'):.2f} "


def bars(lab: Lab) -> int:
    """Print each ratio with its bar; return how many miss it."""
    missed = 0
    header = ["events/oracle", "observed/oracle", "gie/observed", "least-request/observed", "round-robin/observed"]
    for load in lab.loads:
        print(f"\nLoad {load}: ratios of mean TTFT (bar), then goodput lost against oracle (bar)\n")
        print("|".join(["", " workload ", *(f" {name} " for name in header), " events ", " observed ", ""]))
        print("|---" * (len(header) + 3) + "|")
        for workload in lab.workloads:
            cells = list(_ratios(lab, workload, load))
            missed += sum(not fits for _, fits in cells)
            print("|".join(["", f" {workload} ", *(f" {text}{'' if fits else ' MISS'} " for text, fits in cells), ""]))
    return missed


def _ratios(lab: Lab, workload: str, load: float) -> Iterable[tuple[str, bool]]:
    """Yield each ratio and whether it keeps to its bar."""
    at, bar = int(load > 0.9), BARS[workload]
    oracle, events, observed, gie, least, turns = (CONTESTANTS[name] for name in list(CONTESTANTS)[:6])
    for who, most in ((events, bar.events[at]), (observed, bar.observed[at])):
        value = lab.ratio(workload, load, who, oracle)
        yield f"{value:.2f} (<= {most})", value <= most
    for who, fewest in ((gie, bar.gie[at]), (least, bar.least_request[at]), (turns, bar.round_robin[at])):
        value = lab.ratio(workload, load, who, observed)
        yield f"{value:.2f} (>= {fewest})", value >= fewest
    best = statistics.fmean(summary.goodput for summary in lab.summaries(workload, load, oracle))
    for who, most in ((events, bar.goodput_events), (observed, bar.goodput_observed)):
        lost = best - statistics.fmean(summary.goodput for summary in lab.summaries(workload, load, who))
        yield f"{lost:.3f} (<= {most})", round(lost, 3) <= most


def variant(name: str, strategy: str | None = None, **conditions: Any) -> Contestant:
    """Return a contestant with something changed."""
    known = CONTESTANTS[name]
    return Contestant(strategy or known.strategy, msgspec.structs.replace(known.conditions, **conditions))


class Adversity(NamedTuple):
    """What goes wrong: who is compared with whom, and what their ratio of mean times to first token may be."""

    name: str
    above: Contestant
    below: Contestant
    bar: float
    mixed: bool = False


def adversities() -> list[Adversity]:
    """List what goes wrong."""
    slow: dict[str, Any] = {"slowdowns": (Slowdown(engine=0, at=20.0, factor=3.0),)}
    restart: dict[str, Any] = {"restarts": (Restart(engine=0, at=40.0, down=30.0),)}
    plain, foresight = CONTESTANTS["observed"], "ttft-oracle"
    right = variant("observed", f"least-wait:prefill_rate={H100.prefill_rate}")
    found = []
    for factor in (0.25, 4.0):
        start = variant("observed", f"least-wait:prefill_rate={factor * H100.prefill_rate}")
        found.append(Adversity(f"(b) starting rate x {factor:g}, observed", start, right, 1.03))
    for view, bar in (("events", 1.05), ("observed", 1.10)):
        name = f"(c) one engine 3 x slower, {view} / {foresight}"
        found.append(Adversity(name, variant(view, **slow), variant(foresight, **slow), bar))
    least = variant("least-request", **slow)
    found.append(Adversity("(c) the same, observed / least-request", variant("observed", **slow), least, 1 / 2.2))
    stated = variant("observed", rate_factor=1.0)
    found.append(Adversity("(d) half L40S, rates unknown / true, observed", plain, stated, 1.0, mixed=True))
    for factor in (0.3, 3.0):
        sized = variant("observed", kv_factor=factor)
        found.append(Adversity(f"(g) KV memory misstated x {factor:g}, observed", sized, plain, 1.06))
    for view in ("events", "observed"):
        name = f"(h) restart, down for 30 s, {view} / {foresight}"
        found.append(Adversity(name, variant(view, **restart), variant(foresight, **restart), 1.0))
    return [*found, *sources(slow)]


def sources(slow: dict[str, Any]) -> Iterable[Adversity]:
    """Yield what it costs to hear of no first tokens: rates from the engines' metrics each second, or from nothing."""
    fast = {"strategy": f"least-wait:prefill_rate={4 * H100.prefill_rate}"}
    for name, changes in (("", {}), (", starting rate x 4", fast), (", one engine 3 x slower", slow)):
        best = variant("observed", **changes)
        scraped = variant("observed", first_token=False, scrape_interval=1.0, **changes)
        untaught = variant("observed", first_token=False, **changes)
        yield Adversity(f"rates from metrics / from first tokens{name}", scraped, best, inf)
        yield Adversity(f"rates not learnt / from first tokens{name}", untaught, best, inf)


def points(lab: Lab) -> int:
    """Print how least-wait bears what goes wrong; return how many bars are missed."""
    cells = [(workload, load, seed) for workload in lab.workloads for load in lab.loads for seed in lab.seeds]
    found = adversities()
    lab.run(
        lab.job(*cell, who, fleet(mixed=one.mixed)) for one in found for who in (one.above, one.below) for cell in cells
    )
    print("\nGeometric mean of TTFT ratios over workloads and loads\n\n| what goes wrong | ratio (bar) |\n|---|---|")
    missed = 0
    for one in found:
        value = lab.over_all(one.above, one.below, one.mixed)
        missed += value > one.bar
        bar = "" if one.bar == inf else f" (<= {one.bar:.2f}){' MISS' if value > one.bar else ''}"
        print(f"| {one.name} | {value:.3f}{bar} |")
    return missed


def speed(path: Path) -> float | None:
    """Return the CPU seconds that the whole conversation trace takes for one strategy; None without the trace."""
    if not path.exists():
        return None
    workload = from_trace(read_trace(path), load=1.8, rate=None, seed=1)
    wiring = functools.partial(wire, contestants("least-wait", "observed")[0])
    started = time.process_time()
    Simulation(workload, fleet(), wiring, OBSERVED).run()
    seconds = time.process_time() - started
    print(f"{len(workload.requests)} requests of {path.name} on {ENGINES} engines: {seconds:.1f} s of CPU")
    return seconds


def main() -> None:
    """Run what was asked for; the last line is one JSON object; exit with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="directory with the traces of Mooncake and Azure")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(TRACES))
    parser.add_argument("--loads", type=lambda text: [float(part) for part in text.split(",")], default=[0.8, 0.95])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--points", action="store_true", help="what goes wrong, too")
    options = parser.parse_args()
    seconds = speed(options.traces / CONVERSATION)
    lab = Lab(options)
    cells = [(workload, load, seed) for workload in lab.workloads for load in lab.loads for seed in lab.seeds]
    lab.run(lab.job(*cell, who) for cell in cells for who in CONTESTANTS.values())
    absolute(lab)
    missed = bars(lab)
    if options.points:
        missed += points(lab)
    ratios = {
        f"{name}_over_oracle": round(lab.over_all(CONTESTANTS[name], CONTESTANTS["oracle"]), 3) for name in CONTESTANTS
    }
    print(f"\n{json.dumps({'trace_cpu_s': seconds and round(seconds, 1), 'bars_missed': missed, **ratios})}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
