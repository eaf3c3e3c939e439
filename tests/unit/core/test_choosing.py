"""Reading a ranking."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.choosing import cheapest, fewest

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
    """Of the lowest costs it is one with the fewest requests, and over many draws each of those."""
    in_flight = data.draw(st.lists(st.integers(0, 2), min_size=len(costs), max_size=len(costs)))
    lowest = min(costs)
    tied = [place for place, cost in enumerate(costs) if cost == lowest]
    least = min(in_flight[place] for place in tied)
    generator = random.Random(7)
    drawn = {fewest(costs, lowest, in_flight, generator) for _ in range(400)}
    assert drawn == {place for place in tied if in_flight[place] == least}
