"""From records to the numbers strategies are compared by."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.replay.contestants import Contestant
from ext_proc.replay.results import BINS, Report, Run, rows, run_of
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.results import Record, Result, Slo


def record(arrived: float, **values: Any) -> Record:
    """Make a record."""
    usual: dict[str, Any] = {
        "ttft": 0.1, "tpot": 0.01, "e2e": 10.0, "prompt_tokens": 100, "output_tokens": 5, "hit_tokens": 50,
        "predicted_hit": 0, "recomputed_tokens": 0, "endpoint": 0, "preemptions": 0, "attempts": 1,
    }  # fmt: skip
    return Record(arrived=arrived, **{**usual, **values})


def summed(*records: Record, warm_up: float = 0.0) -> Run:
    """Sum a run of a minute on two engines up."""
    return run_of(Result(workload="w", engines=2, records=records, seconds=60.0), 1, Slo(), warm_up)


def test_what_comes_while_warming_up_does_not_count() -> None:
    """Plots still show it."""
    run = summed(record(0.0, ttft=9.0), record(5.0), record(50.0), warm_up=0.1)
    assert (run.numbers.requests, run.numbers.ttft_mean_s) == (2, 0.1)
    assert run.series.in_flight[0][0] == 1.0


def test_requests_in_flight_are_a_mean_over_time() -> None:
    """A request counts for the part of a second it was there, at its engine only."""
    run = summed(record(0.5, e2e=2.0), record(1.0, e2e=59.0), record(0.0, e2e=0.25, endpoint=1))
    assert run.series.in_flight[0][:4] == pytest.approx((0.5, 2.0, 1.5, 1.0))
    assert run.series.in_flight[1] == (0.25, *[0.0] * (BINS - 1))


def test_hits_are_a_ratio_of_tokens_by_arrival() -> None:
    """Where nothing arrived there is none."""
    run = summed(record(0.1, prompt_tokens=300, hit_tokens=30), record(0.9), record(2.0))
    assert run.series.hit_ratio[:4] == (0.2, None, 0.5, None)
    assert run.numbers.hit_ratio == pytest.approx(130 / 500)


def test_quantiles_run_from_the_smallest_to_the_largest() -> None:
    """However few requests there were."""
    quantiles = summed(record(0.0, ttft=3.0), record(0.0, ttft=1.0)).series.ttft
    assert (quantiles[0], quantiles[-1], list(quantiles) == sorted(quantiles)) == (1.0, 3.0, True)


def test_nothing_is_no_fault() -> None:
    """A run without requests has numbers all the same."""
    assert summed().numbers.requests == 0


def test_ratios_are_means_over_seeds(report: Report) -> None:
    """Each seed is compared with itself; the range shows how far seeds differ."""
    first, second = report.strategies
    assert (first.ttft_to_first, second.ttft_to_first, second.ttft_to_best) == (1.0, 2.0, 2.0)
    assert (second.ttft_mean_s, second.ttft_mean_least_s, second.ttft_mean_most_s) == (pytest.approx(0.3), 0.2, 0.4)
    assert [run.seed for run in second.runs] == [1, 2]


def test_the_first_need_not_be_the_best() -> None:
    """Then its ratio to the best is above one."""
    runs = [[summed(record(0.0, ttft=wait))] for wait in (0.4, 0.1)]
    first, second = rows([Contestant(name, {}, View.ORACLE, name) for name in "ab"], runs)
    assert (first.ttft_to_best, second.ttft_to_first) == (4.0, 0.25)
