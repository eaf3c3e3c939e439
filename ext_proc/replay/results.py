"""The results of a replay: numbers per strategy, as `--json` prints them, and series for plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from ext_proc.replay.contestants import Contestant
from ext_proc.sim.fleet.results import Record, Result, Slo, Summary

BINS = 60
"""Points in time of a plot."""

_POINTS = 200
_DIGITS = 6


class Series(msgspec.Struct, frozen=True):
    """What plots show of one run.

    Attributes:
        ttft: quantiles of the seconds to the first token, from the smallest to the largest.
        seconds: length of the run.
        in_flight: for each engine, the mean number of requests there, in each of BINS equal parts of the run.
        hit_ratio: share of prompt tokens found in caches, by arrival, in each part; None where nothing arrived.
    """

    ttft: tuple[float, ...]
    seconds: float
    in_flight: tuple[tuple[float, ...], ...]
    hit_ratio: tuple[float | None, ...]


class Run(msgspec.Struct, frozen=True):
    """One run of one contestant.

    Attributes:
        seed: of the workload and of everything random.
        numbers: what it is judged by.
        series: for plots.
        failure: what went wrong when the strategy failed for the first time; empty if it never did.
        has_only_failed: True if the strategy failed on every request, so that the numbers are not its own.
    """

    seed: int
    numbers: Numbers
    series: Series
    failure: str = ""
    has_only_failed: bool = False


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a run, or the mean of several, is judged by.

    Attributes:
        requests: how many count.
        ttft_mean_s: mean seconds to the first token.
        ttft_p50_s: median of the same.
        ttft_p99_s: 99th percentile of the same.
        tpot_mean_s: mean seconds per output token after the first.
        e2e_mean_s: mean seconds to the last token.
        hit_ratio: share of the prompt tokens that were found in a cache.
        goodput: share of the requests that met the service level.
        balance: coefficient of variation, over the engines, of the prompt tokens they had to compute; 0 is even.
        preemptions: how often an engine took a request's memory away.
        strategy_failures: how often the strategy failed, so that least-request decided; while warming up, too.
    """

    requests: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    e2e_mean_s: float
    hit_ratio: float
    goodput: float
    balance: float
    preemptions: float
    strategy_failures: float


class SeedNumbers(Numbers, frozen=True, kw_only=True):
    """The numbers of one run.

    Attributes:
        seed: of the run.
    """

    seed: int


class Row(Numbers, frozen=True, kw_only=True):
    """A contestant; its numbers are means over the seeds.

    Attributes:
        strategy: name of the strategy.
        parameters: its parameters.
        view: where knowledge of caches came from.
        label: what tables call it.
        ttft_mean_least_s: the smallest mean of a seed.
        ttft_mean_most_s: the largest.
        ttft_to_first: mean over the seeds of its mean TTFT over that of the first contestant.
        ttft_to_best: the same, over that of the contestant with the smallest mean TTFT.
        failure: what went wrong when the strategy failed for the first time; empty if it never did.
        runs: the numbers of each seed.
    """

    strategy: str
    parameters: dict[str, Any]
    view: str
    label: str
    ttft_mean_least_s: float
    ttft_mean_most_s: float
    ttft_to_first: float
    ttft_to_best: float
    failure: str
    runs: tuple[SeedNumbers, ...]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What was replayed.

    Attributes:
        name: of the workload or trace.
        format: of the trace; empty if there is none.
        requests: how many, with the first seed.
        block_tokens: tokens of a block.
        prompt_tokens_mean: mean length of prompts.
        output_tokens_mean: mean length of answers.
        rate: requests a second, on the average.
        unusable_lines: lines of the trace that could not be used.
        too_long: requests left out since an engine's memory cannot hold them.
        notes: what else one should know.
    """

    name: str
    format: str
    requests: int
    block_tokens: int
    prompt_tokens_mean: float
    output_tokens_mean: float
    rate: float
    unusable_lines: int
    too_long: int
    notes: tuple[str, ...]


class Engines(msgspec.Struct, frozen=True):
    """Engines of one kind.

    Attributes:
        preset: name of the preset.
        count: how many.
        kv_tokens: KV memory of each.
    """

    preset: str
    count: int
    kv_tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object of a replay; equal options give equal bytes.

    Attributes:
        version: of kvpicker.
        workload: what was replayed.
        engines: on what.
        seeds: one run each.
        warm_up: share of the time of arrivals whose requests do not count.
        slo: when a request counts as served well.
        strategies: the contestants, in the order asked for.
    """

    version: str
    workload: Replayed
    engines: tuple[Engines, ...]
    seeds: tuple[int, ...]
    warm_up: float
    slo: Slo
    strategies: tuple[Row, ...]


def run_of(result: Result, seed: int, slo: Slo, warm_up: float, failures: tuple[int, str] = (0, "")) -> Run:
    """Sum up one run; requests that arrived while it warmed up are shown in plots, and do not count in numbers.

    Args:
        result: the run.
        seed: of the run.
        slo: when a request counts as served well.
        warm_up: share of the time of arrivals that does not count.
        failures: how often the strategy failed, and what it was the first time.
    """
    end = max((record.arrived for record in result.records), default=0.0)
    counted = tuple(record for record in result.records if record.arrived >= end * warm_up)
    summary = msgspec.structs.replace(result, records=counted).summary(slo)
    count, first = failures
    return Run(seed, _numbers(summary, count), _series(result, counted), first, 0 < len(result.records) <= count)


def rows(contestants: Sequence[Contestant], runs: Sequence[Sequence[Run]]) -> tuple[Row, ...]:
    """Compare contestants.

    Args:
        contestants: who.
        runs: for each contestant its runs, in the order of the seeds.
    """
    waits = [[run.numbers.ttft_mean_s for run in own] for own in runs]
    best = min(waits, key=fmean)
    return tuple(
        Row(
            strategy=contestant.name,
            parameters=contestant.parameters,
            view=contestant.view,
            label=contestant.label,
            ttft_mean_least_s=min(wait),
            ttft_mean_most_s=max(wait),
            ttft_to_first=_ratio(wait, waits[0]),
            ttft_to_best=_ratio(wait, best),
            failure=next((run.failure for run in own if run.failure), ""),
            runs=tuple(SeedNumbers(seed=run.seed, **msgspec.structs.asdict(run.numbers)) for run in own),
            **_means([run.numbers for run in own]),
        )
        for contestant, own, wait in zip(contestants, runs, waits, strict=True)
    )


def _numbers(summary: Summary, failures: int) -> Numbers:
    return Numbers(
        requests=summary.requests,
        ttft_mean_s=_rounded(summary.ttft_mean),
        ttft_p50_s=_rounded(summary.ttft_p50),
        ttft_p99_s=_rounded(summary.ttft_p99),
        tpot_mean_s=_rounded(summary.tpot_mean),
        e2e_mean_s=_rounded(summary.e2e_mean),
        hit_ratio=_rounded(summary.hit_ratio),
        goodput=_rounded(summary.goodput),
        balance=_rounded(summary.balance),
        preemptions=summary.preemptions,
        strategy_failures=failures,
    )


def _means(numbers: Sequence[Numbers]) -> dict[str, float]:
    return {field: _rounded(fmean(getattr(each, field) for each in numbers)) for field in Numbers.__struct_fields__}


def _ratio(waits: Sequence[float], others: Sequence[float]) -> float:
    return _rounded(fmean(wait / other if other else 1.0 for wait, other in zip(waits, others, strict=True)))


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def _series(result: Result, counted: Sequence[Record]) -> Series:
    waits = sorted(record.ttft for record in counted)
    last = len(waits) - 1
    quantiles = tuple(waits[last * point // _POINTS] for point in range(_POINTS + 1)) if waits else ()
    width = result.seconds / BINS or 1.0
    engines = tuple(
        _in_flight([record for record in result.records if record.endpoint == engine], width)
        for engine in range(result.engines)
    )
    return Series(quantiles, result.seconds, engines, _hits(result.records, width))


def _in_flight(records: Sequence[Record], width: float) -> tuple[float, ...]:
    """Return the mean number of requests in each part of the run; an entry adds the seconds it was there."""
    seconds = [0.0] * BINS
    for record in records:
        end = record.arrived + record.e2e
        for place in range(_bin(record.arrived, width), _bin(end, width) + 1):
            seconds[place] += max(min(end, (place + 1) * width) - max(record.arrived, place * width), 0.0)
    return tuple(second / width for second in seconds)


def _hits(records: Sequence[Record], width: float) -> tuple[float | None, ...]:
    return tuple(
        None if not prompt else hit / prompt
        for hit, prompt in zip(
            _sums(records, width, lambda record: record.hit_tokens),
            _sums(records, width, lambda record: record.prompt_tokens),
            strict=True,
        )
    )


def _sums(records: Sequence[Record], width: float, tokens: Callable[[Record], int]) -> list[int]:
    sums = [0] * BINS
    for record in records:
        sums[_bin(record.arrived, width)] += tokens(record)
    return sums


def _bin(time: float, width: float) -> int:
    return min(int(time / width), BINS - 1)
