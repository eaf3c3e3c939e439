"""Reading a ranking."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.choosing import cheapest, drawn, fewest
from ext_proc.core.knowledge import Knowledge
from ext_proc.core.model import Endpoint
from ext_proc.core.signals import EngineSignals, Signals
from ext_proc.core.strategies import Context

COSTS = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=20)


@given(COSTS, st.integers(0, 25))
def test_the_cheapest_follow_in_order(costs: list[float], fallbacks: int) -> None:
    """The chosen one comes first, nobody twice, and nobody left out is cheaper than one named."""
    best = costs.index(min(costs))
    places = cheapest(costs, best, fallbacks)
    named = [costs[place] for place in places]
    assert (places[0], len(places), len(set(places))) == (best, min(fallbacks + 1, len(costs)), len(places))
    assert named == sorted(named)
    assert all(costs[place] >= named[-1] for place in range(len(costs)) if place not in places)


@given(COSTS, st.data())
def test_a_tie_goes_to_the_fewest_in_flight(costs: list[float], data: st.DataObject) -> None:
    """Of the lowest costs it is one with the fewest requests, and each of those may be it."""
    in_flight = data.draw(st.lists(st.integers(0, 2), min_size=len(costs), max_size=len(costs)))
    lowest = min(costs)
    tied = [place for place, cost in enumerate(costs) if cost == lowest]
    least = min(in_flight[place] for place in tied)
    assert list(fewest(costs, lowest, in_flight)) == [place for place in tied if in_flight[place] == least]


def often_drawn(*engines: tuple[float | None, float | None], equal: Sequence[int] | None = None) -> set[int]:
    """Draw many times among engines that say how many requests they have and what share of memory is in use."""
    signals = Signals()
    for slot, (requests, usage) in enumerate(engines):
        signals.note(slot, EngineSignals(at=0.0, running=requests, waiting=requests and 0.0, kv_usage=usage))
    candidates = [Endpoint(address=f"10.0.0.{slot}:80", pool="main", slot=slot) for slot in range(len(engines))]
    context = Context(
        now=1.0,
        generator=random.Random(7),
        loads=(),
        hits=(),
        output=0.0,
        residence=0.0,
        turn=0,
        knowledge=Knowledge(engines=signals),
    )
    equal = range(len(engines)) if equal is None else equal
    return {drawn(equal, candidates, context) for _ in range(400)}


def test_c01_among_equals_engines_that_have_work_of_others_come_last() -> None:
    """Where nothing of ours tells endpoints apart, memory in use and requests of others do, beyond what is noise."""
    assert often_drawn((4, 0.91), (4, 0.10), (4, None)) == {1}
    assert often_drawn((4, 0.91), (4, 0.10), (4, None), equal=[0, 2]) == {0, 2}  # all that is known is E1
    assert often_drawn((12, 0.0), (0, 0.05), (3, 0.0)) == {1, 2}
    assert often_drawn((0, None), (0, None), (40, None)) == {0, 1}


def test_c03_c06_engines_that_say_nothing_are_average() -> None:
    """They are drawn where others are as full as the mean, and nobody starves where nobody says anything."""
    assert often_drawn((None, None), (2, None), (None, None)) == {0, 1, 2}
    assert often_drawn((None, None), (None, None)) == {0, 1}
    assert often_drawn((0, 0.0), (30, 0.9), (None, None)) == {0}


def test_of_many_equals_all_are_drawn() -> None:
    """Only some engines are compared at a time, and each has its turn."""
    assert often_drawn(*[(0.0, 0.0)] * 40) == set(range(40))
    assert often_drawn(*[(0.0, 0.0)] * 20, *[(99.0, 0.9)] * 4) >= set(range(20))
