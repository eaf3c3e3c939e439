"""What a kvpicker would do that knew the truth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking
from ext_proc.sim.fleet.conditions import Conditions, View
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.kvpickers import Clock
from ext_proc.sim.fleet.oracle import OracleIndex, OracleLedger, TtftOracle
from ext_proc.sim.fleet.sequence import Sequence as EngineSequence
from ext_proc.sim.fleet.simulation import Simulation
from tests.unit.sim.fleet.fleets import H100, preset, request, workload
from tests.unit.sim.fleet.wiring import wiring


def test_the_index_reads_the_caches() -> None:
    """It finds what engines hold, by engine, and learns nothing from decisions."""
    engines = [Engine(H100, 16), Engine(H100, 16)]
    engines[1].submit(EngineSequence(0, request(prompt=40, output=1, blocks=(1, 2))), 0.0)
    engines[1].advance()
    index = OracleIndex(engines)
    index.learn(0, [1, 2, 3])
    assert index.depths([1, 2, 3], [0, 1]) == [0, 2]


def test_the_ledger_reads_the_queues() -> None:
    """Its queue is the rest of the step under way and what waits behind it, at the true rate."""
    engine = Engine(preset(max_running=1), 16)
    engine.submit(EngineSequence(0, request(prompt=8000, output=7)), 0.0)
    engine.submit(EngineSequence(1, request(prompt=1000, output=7)), 0.0)
    load = OracleLedger([engine], Clock(0.1)).loads_of([0])[0]
    assert (load.in_flight, load.tokens) == (2, 9014)
    waiting = 1000 * 27e-6 + 1.3e-9 * 1000**2 / 2
    assert load.busy_until == pytest.approx(engine.due + waiting)


def test_the_ledger_reads_the_memory() -> None:
    """What two requests share is held once, and of what they and one that waits will get, what is beyond half."""
    engine = Engine(preset(max_running=2), 16)
    for position in range(3):
        engine.submit(EngineSequence(position, request(prompt=160, output=7, blocks=tuple(range(9)))), 0.0)
        engine.advance()
    load = OracleLedger([engine], Clock(0.1)).loads_of([0])[0]
    held = (9 + 2 + 2) * 16
    assert len(engine.waiting) == 1
    assert load.tokens == 3 * 167
    assert held - 3 * 7 / 2 <= load.pinned <= held + 16 + 3 * 7 / 2 + 1


def test_the_ttft_oracle_foresees_the_first_token() -> None:
    """On an idle engine, behind a queue and behind a full cache it expects about what comes."""
    asked = workload(
        request(prompt=30_000, output=300),
        request(at=0.1, prompt=10_000, output=300),
        request(at=2.0, prompt=30_000, output=300),
    )
    expected: list[float] = []

    class Noting(TtftOracle):
        """Keeps what it expects."""

        def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
            made = super().rank(request, candidates, context)
            expected.append(made.costs[0])
            return made

    result = Simulation(
        asked,
        [preset(kv_tokens=50_000)],
        wiring(lambda site: Noting(site.engines, site.hasher.chain)),
        Conditions(view=View.ORACLE),
    ).run()
    for record, foreseen in zip(result.records, expected, strict=True):
        assert record.ttft == pytest.approx(foreseen, rel=0.08)


def test_the_ttft_oracle_avoids_the_busy_engine() -> None:
    """Of an idle and a busy engine it takes the idle one, though the busy one has the prefix cached."""
    blocks = tuple(range(1, 11))
    asked = workload(
        request(prompt=170, output=1, blocks=blocks),
        request(at=1.0, prompt=60_000, output=1),
        request(at=1.01, prompt=170, output=1, blocks=blocks),
        request(at=9.0, prompt=170, output=1, blocks=blocks),
    )
    result = Simulation(
        asked,
        [H100, H100],
        wiring(lambda site: TtftOracle(site.engines, site.hasher.chain)),
        Conditions(view=View.ORACLE),
    ).run()
    first, busy, other, again = (record.endpoint for record in result.records)
    assert other != busy
    assert again in (first, other)
