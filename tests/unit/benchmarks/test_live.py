"""What a comparison of live and simulated runs says."""

from __future__ import annotations

import pytest

from benchmarks.live import SCENARIOS, Result, order, workload
from benchmarks.live_run import Live, Measured
from benchmarks.twin import Contestant


def result(contestant: Contestant, live: float, simulated: float) -> Result:
    """Make a result with these mean times to first token."""
    measured = Live(Measured(live, live, live, 0.0), overhead=0.0, answered=1, cores=1.0, seconds=1.0, problems=())
    return Result(contestant, measured, Measured(simulated, simulated, simulated, 0.0))


WAIT, SCRAPE = Contestant("least-wait"), Contestant("least-wait", scrape=True)
REQUEST, ROBIN = Contestant("least-request"), Contestant("round-robin")


def test_the_order_is_judged_by_pairs_that_the_simulator_tells_apart() -> None:
    """Near ties and pairs of one strategy are left out; a live run the other way round is told."""
    results = [result(ROBIN, 1.5, 2.1), result(REQUEST, 1.6, 2.0), result(WAIT, 1.8, 1.0), result(SCRAPE, 1.0, 1.2)]
    assert order(results) == [
        ("least-wait", "least-request", False),
        ("least-wait", "round-robin", False),
        ("least-wait (scrape)", "least-request", True),
        ("least-wait (scrape)", "round-robin", True),
    ]


@pytest.mark.parametrize("speed", [0.25, 1.0])
def test_a_workload_is_in_wall_seconds(speed: float) -> None:
    """Half the speed is twice the time, and the same requests otherwise."""
    scenario = SCENARIOS["chat"]._replace(requests=60)
    one = workload("chat", scenario._replace(speed=1.0), None, 1).requests
    other = workload("chat", scenario._replace(speed=speed), None, 1).requests
    assert [request.at for request in other] == pytest.approx([request.at / speed for request in one])
    assert [request.blocks for request in other] == [request.blocks for request in one]
