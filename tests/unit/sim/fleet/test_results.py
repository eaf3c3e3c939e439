"""What a simulated run yields."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.sim.fleet.results import Record, Result, Slo


def record(**fields: Any) -> Record:
    """Make a record of a request that was served well."""
    usual = {
        "arrived": 0.0,
        "ttft": 1.0,
        "tpot": 0.05,
        "e2e": 2.0,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "hit_tokens": 0,
        "predicted_hit": 0,
        "recomputed_tokens": 0,
        "endpoint": 0,
        "preemptions": 0,
        "attempts": 1,
    }
    return Record(**(usual | fields))


def result(*records: Record, engines: int = 2) -> Result:
    """Make a result."""
    return Result(workload="test", engines=engines, records=records, seconds=1.0)


def test_a_summary_by_hand() -> None:
    """Means, quantiles, hit ratio and balance of a handful of records."""
    records = [record(ttft=float(second), e2e=10.0, hit_tokens=50, endpoint=0) for second in range(3)]
    records.append(record(ttft=9.0, e2e=10.0, output_tokens=1, tpot=0.0, endpoint=1, preemptions=2))
    summary = result(*records).summary()
    assert (summary.requests, summary.preemptions) == (4, 2)
    assert (summary.ttft_mean, summary.ttft_p50, summary.ttft_p99) == (3.0, 2.0, 9.0)
    assert (summary.tpot_mean, summary.e2e_mean) == (pytest.approx(0.05), 10.0)
    assert (summary.hit_ratio, summary.goodput) == (150 / 400, 0.75)
    assert summary.balance == pytest.approx(25 / 125)


def test_nothing_is_no_division_by_zero() -> None:
    """An empty run has a summary."""
    assert result().summary().ttft_mean == 0.0


def test_the_slo_grants_long_prompts_more_time() -> None:
    """Two seconds and the prompt at the granted rate; a slow stream fails too."""
    slo = Slo(ttft_s=2.0, prefill_rate=1000.0, tpot_s=0.1)
    assert record(ttft=4.9, prompt_tokens=3000).meets(slo)
    assert not record(ttft=5.1, prompt_tokens=3000).meets(slo)
    assert not record(tpot=0.11).meets(slo)
