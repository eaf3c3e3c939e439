"""Fleets of the independent simulator."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from benchmarks.independent.contenders import CONTENDERS, Case, simulate
from benchmarks.independent.fleet import Outage
from benchmarks.independent.workloads import KINDS

NOWHERE = Path()


@pytest.mark.parametrize("contender", sorted(CONTENDERS))
def test_each_contender_answers_all(contender: str) -> None:
    """Every contender gets every request answered, and the same seed comes to the same."""
    case = Case("hot", contender, 0.02, 7)
    result = simulate(case, NOWHERE)
    assert result.requests > 90
    assert result.goodput == 1.0
    assert 0.0 < result.ttft <= result.duration
    if contender == "events":
        assert simulate(case, NOWHERE) == result


@pytest.mark.parametrize("contender", ["events", "observed", "oracle", "ttft-oracle"])
def test_outage_loses_no_request(contender: str) -> None:
    """What an engine loses is answered by others, and none is sent to it while it is away."""
    case = Case("hot", contender, 0.03, 7, outage=Outage(place=0, at=20.0, seconds=10.0))
    calm = msgspec.structs.replace(case, outage=None)
    assert simulate(case, NOWHERE).requests == simulate(calm, NOWHERE).requests
    assert simulate(case, NOWHERE).ttft > simulate(calm, NOWHERE).ttft


def test_sessions_go_on() -> None:
    """A turn begins with all of the one before, its answer too."""
    workload = KINDS["chat"].make(NOWHERE, 1.0, random.Random(1))
    turns = [request for request in workload.requests if request.following is not None]
    assert turns
    for request in turns:
        following = request.following
        assert following is not None
        assert following.runs[: len(request.runs)] == request.runs
        assert following.prompt > request.prompt + request.output
        assert sum(run.blocks for run in following.runs) == following.prompt // 16


def test_trace_is_overlaid_at_its_rate(tmp_path: Path) -> None:
    """Two windows of a trace share its hash ids; the requests of one stamp are spread, at the rate asked for."""
    line = '{{"timestamp": {}, "input_length": 600, "output_length": 4, "hash_ids": [0, {}]}}\n'
    text = "".join(line.format(3000 * (place // 10), place + 1) for place in range(200))
    (tmp_path / "mooncake_conversation.jsonl").write_text(text)
    workload = KINDS["conv"].make(tmp_path, 5.0, random.Random(1))
    times = [request.at for request in workload.requests]
    assert times == sorted(times)
    assert len(set(times)) == len(times) == 100
    assert workload.end == pytest.approx(20.0)
    assert {request.runs[0] for request in workload.requests} == {workload.requests[0].runs[0]}
    assert {request.runs[1].blocks for request in workload.requests} == {600 // 16 - 32}
