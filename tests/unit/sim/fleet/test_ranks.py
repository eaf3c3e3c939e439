"""A fleet in which one address has four data-parallel ranks and another has one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.replay.generators import FINE_BLOCK, chat, unique
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.kvpickers import Parts, Site, Wiring
from ext_proc.sim.fleet.ranked import RankedEngine
from ext_proc.sim.fleet.results import Record
from ext_proc.sim.fleet.sequence import Sequence
from ext_proc.sim.fleet.simulation import Simulation
from ext_proc.sim.workload import Workload
from tests.unit.sim.fleet.fleets import H100, preset, request
from tests.unit.sim.fleet.wiring import Made, wiring

FOUR = preset(ranks=4, kv_tokens=4 * H100.kv_tokens)
FULL_RATE = 17.0
"""Requests a second and engine of what `unique` makes."""


def aware(kept: list[Made] | None = None) -> Wiring:
    """Return kvpickers that know how many ranks there are."""
    return wiring(lambda _: LeastWait(), kept)


def unaware(site: Site) -> Parts:
    """Make a kvpicker that takes every address for one engine."""
    specs = tuple(msgspec.structs.replace(spec, ranks=1) for spec in site.specs)
    return aware()(msgspec.structs.replace(site, specs=specs))


def served(share: float, wire: Wiring, **conditions: Any) -> list[Record]:
    """Serve prompts that have nothing in common, at a share of what five engines bear."""
    asked = unique(5 * FULL_RATE * share, 2000, Random(1))
    run = Simulation(Workload("test", 512, tuple(asked)), [FOUR, H100], wire, Conditions(**conditions)).run()
    return [record for record in run.records if record.arrived >= run.seconds / 5]


def ttft(records: Iterable[Record]) -> float:
    """Return the mean seconds to the first token."""
    return statistics.mean(record.ttft for record in records)


def work(records: list[Record]) -> float:
    """Return the share of the prompt tokens that the address with four ranks got."""
    of_first = sum(record.prompt_tokens for record in records if record.endpoint == 0)
    return of_first / sum(record.prompt_tokens for record in records)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_four_ranks_get_four_fifths_of_the_work(share: float) -> None:
    """At any load, with a rate that is learnt and is that of one rank.

    Who knows of no ranks learns a rate that grows with the load, which makes up for the queue but not for the prefill.
    """
    kept: list[Made] = []
    known = served(share, aware(kept))
    assert work(known) == pytest.approx(0.8, abs=0.03)
    rates = [kept[0].parts.feedback._rates.rate(slot) or 0.0 for slot in range(2)]
    assert rates[0] == pytest.approx(rates[1], rel=0.3)
    unknown = served(share, unaware)
    assert abs(work(unknown) - 0.8) > 0.04
    assert ttft(known) < 1.05 * ttft(unknown)


def test_answers_come_sooner_than_without_knowing() -> None:
    """Conversations: the single engine is not crowded while ranks of the other idle."""
    asked = Workload("chat", FINE_BLOCK, tuple(chat(5 * 9.8 * 0.8, 2000, Random(1))))
    known, unknown = (Simulation(asked, [FOUR, H100], wire).run().records for wire in (aware(), unaware))
    assert ttft(known) < ttft(unknown)
    assert statistics.mean(one.e2e for one in known) < 0.85 * statistics.mean(one.e2e for one in unknown)


def test_a_configured_rate_is_that_of_one_rank() -> None:
    """Without first tokens nothing else would tell that a queue drains four times as fast."""
    told = {"first_token": False, "rate_factor": 1.0}
    known, unknown = served(0.6, aware(), **told), served(0.6, unaware, **told)
    assert work(known) == pytest.approx(0.8, abs=0.03)
    assert work(unknown) < 0.75
    assert ttft(known) < ttft(unknown) / 5


def test_an_engine_balances_its_ranks() -> None:
    """Each of four requests gets a rank of its own, and each is as fast as if it were alone."""
    engine, alone = RankedEngine(FOUR, 16), RankedEngine(FOUR, 16)
    for position in range(4):
        engine.submit(Sequence(position, request(prompt=1000, output=1)), 0.0)
    alone.submit(Sequence(0, request(prompt=1000, output=1)), 0.0)
    assert engine.due == alone.due
    engine.advance()
    assert len(engine.ended) == 4
    assert engine.usage == 0.0


def test_an_engine_of_ranks_loses_all_of_them() -> None:
    """What waited and what ran in any rank is gone when it crashes."""
    engine = RankedEngine(preset(ranks=2, max_running=1), 16)
    for position in range(4):
        engine.submit(Sequence(position, request()), 0.0)
    assert (len(engine.running), len(engine.waiting)) == (2, 2)
    assert sorted(sequence.position for sequence in engine.crash()) == [0, 1, 2, 3]
    assert not engine.running
    assert not engine.waiting
