"""One popular system prompt: what following it costs in waiting."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ext_proc.core.strategies import Strategy
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.round_robin import RoundRobin
from ext_proc.sim.fleet.results import Record
from ext_proc.sim.fleet.simulation import Simulation
from tests.unit.sim.fleet.fleets import preset, request, workload
from tests.unit.sim.fleet.wiring import wiring

SYSTEM = tuple(range(1, 501))
"""8,000 tokens."""


def served(strategy: Strategy, slots: int, output: int) -> list[Record]:
    """Let one request come alone, so that one engine knows the prefix, and then 60 a second for 16 seconds."""
    generator = random.Random(1)
    arrivals = [0.0, *(3.0 + number / 60 + generator.uniform(0, 1 / 60) for number in range(60 * 16))]
    asked = [
        request(at=at, prompt=8_100, output=output, blocks=(*SYSTEM, *(10_000 * number + place for place in range(6))))
        for number, at in enumerate(arrivals, 1)
    ]
    run = Simulation(workload(*asked), [preset(max_running=slots)] * 3, wiring(lambda _site: strategy)).run()
    return list(run.records)


def queueing(records: list[Record]) -> float:
    """Return the 99th percentile of the seconds beyond what the fastest first token took."""
    waits = sorted(record.ttft for record in records if record.arrived >= 13.0)
    return waits[len(waits) * 99 // 100] - min(record.ttft for record in records)


@pytest.mark.parametrize(("slots", "output"), [(26, 66), (256, 66), (30, 60), (40, 60)])
def test_a_hot_prefix_spreads_before_it_costs_waiting(slots: int, output: int) -> None:
    """Equal shares after 10 s, the prefix in every cache, and a tail not far from that of taking turns (F02)."""
    records = served(LeastWait(), slots, output)
    late = [record for record in records if record.arrived >= 13.0]
    counts = Counter(record.endpoint for record in late)
    assert len(counts) == 3
    assert max(counts.values()) <= 1.5 * min(counts.values())
    holders = {record.endpoint for record in late if record.hit_tokens >= 8_000}
    assert holders == {0, 1, 2}
    assert queueing(records) < 3 * queueing(served(RoundRobin(), slots, output))
