"""Reports and runs that tests of their presentation need."""

from __future__ import annotations

import pytest

from ext_proc.replay.contestants import Contestant
from ext_proc.replay.results import Engines, Numbers, Replayed, Report, Run, Series, rows
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.results import Slo

HOSTILE = "<script src='https://x.example/'>&\u202e"


def numbers(wait: float) -> Numbers:
    """Make the numbers of a run with that mean TTFT."""
    return Numbers(
        requests=10,
        ttft_mean_s=wait,
        ttft_p50_s=wait / 2,
        ttft_p99_s=wait * 5,
        tpot_mean_s=0.02,
        e2e_mean_s=3.0,
        hit_ratio=0.5,
        goodput=0.9,
        balance=0.1,
        preemptions=0,
        strategy_failures=0.0,
    )


SERIES = Series((0.01, 0.1, 2.0), 60.0, ((1.0,) * 60, (0.0,) * 60), (None, *[0.5] * 58, None))


@pytest.fixture
def report() -> Report:
    """Two strategies with two seeds each; the second is twice as slow, and its label is hostile."""
    contestants = [Contestant("a", {}, View.OBSERVED, "a"), Contestant("b", {"x": 1}, View.EVENTS, HOSTILE)]
    runs = [[Run(seed, numbers(wait * seed), SERIES) for seed in (1, 2)] for wait in (0.1, 0.2)]
    replayed = Replayed(
        name=HOSTILE,
        format="bodies",
        requests=10,
        block_tokens=64,
        prompt_tokens_mean=100.0,
        output_tokens_mean=10.0,
        rate=1.5,
        unusable_lines=1,
        too_long=0,
        notes=(f"1 line could not be used; the first: {HOSTILE}",),
    )
    return Report(
        version="0",
        workload=replayed,
        engines=(Engines("h100-8b", 2, 450_000),),
        seeds=(1, 2),
        warm_up=0.1,
        slo=Slo(),
        strategies=rows(contestants, runs),
    )


@pytest.fixture
def series() -> list[Series]:
    """What plots show of the report's strategies."""
    return [SERIES, SERIES]
