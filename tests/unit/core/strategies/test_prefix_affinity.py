"""prefix-affinity."""

from __future__ import annotations

from collections import Counter
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.knowledge import Knowledge
from ext_proc.core.load import Load
from ext_proc.core.strategies.prefix_affinity import PrefixAffinity, PrefixAffinityParameters
from tests.unit.core.builders import Fleet, context, endpoints, request, text

BLOCKS = Knowledge(tokens=lambda blocks: 64 * blocks)
KEYS = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(1000)]


def _owner(strategy: PrefixAffinity, among: tuple, chain: list[int], loads: list[int] | None = None) -> str:
    seen = context([Load(load) for load in loads or [0] * len(among)], chain=chain, knowledge=BLOCKS)
    costs = strategy.rank(request(), among, seen).costs
    return among[costs.index(min(costs))].address


def test_prompts_that_begin_alike_meet() -> None:
    """Requests with one system prompt go to one endpoint, and those with others elsewhere too."""
    fleet = Fleet(4, PrefixAffinity())
    alike = {fleet.serve(request(text("system") + text(turn))).chosen.slot for turn in range(20)}
    others = {fleet.serve(request(text(turn))).chosen.slot for turn in range(40)}
    assert len(alike) == 1
    assert others == {endpoint.slot for endpoint in fleet.endpoints}


def test_only_the_beginning_counts() -> None:
    """What stands behind the configured depth changes nothing, what stands before it does."""
    strategy, fleet = PrefixAffinity(PrefixAffinityParameters(prefix_tokens=128)), endpoints(50)
    assert _owner(strategy, fleet, [1, KEYS[2], 3]) == _owner(strategy, fleet, [7, KEYS[2], 8, 9])
    assert len({_owner(strategy, fleet, [1, key, 3]) for key in KEYS[:20]}) > 5


def test_a_depth_between_blocks_is_rounded_up() -> None:
    """65 tokens take two blocks of 64, and a chain that is shorter is taken whole."""
    strategy = PrefixAffinity(PrefixAffinityParameters(prefix_tokens=65))
    assert strategy._key(context([Load()], chain=[1, 2, 3], knowledge=BLOCKS)) == 2
    assert strategy._key(context([Load()], chain=[1], knowledge=BLOCKS)) == 1


def test_a_prompt_without_a_block_goes_where_the_fewest_are() -> None:
    """Without anything to hash it is least-request."""
    fleet = Fleet(2, PrefixAffinity())
    fleet.occupy(0, 2)
    assert fleet.pick(request(b"hello")).chosen == fleet.endpoints[1]


def test_only_the_keys_of_an_endpoint_that_leaves_move() -> None:
    """Of eight endpoints one leaves: about an eighth of the prefixes moves, all others stay."""
    strategy, fleet = PrefixAffinity(), endpoints(8)
    before = [_owner(strategy, fleet, [key]) for key in KEYS]
    after = [_owner(strategy, fleet[:-1], [key]) for key in KEYS]
    moved = {old for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {fleet[-1].address}
    assert 0.6 / 8 < before.count(fleet[-1].address) / len(KEYS) < 1.5 / 8
    assert [_owner(strategy, fleet, [key]) for key in KEYS] == before


def test_a_hot_prefix_overflows_to_the_next_on_the_ring() -> None:
    """One prefix alone fills endpoints to the bound, one after the other, and never beyond it."""
    fleet = Fleet(8, PrefixAffinity())
    made = [fleet.pick(request(text("hot"))) for _ in range(80)]
    counts = Counter(decision.chosen.address for decision in made)
    assert max(counts.values()) <= ceil(1.25 * 80 / 8)
    assert made[0].endpoints[1] == made[1].chosen


def test_a_few_requests_stay_together_if_they_may() -> None:
    """In quiet hours a family is not torn apart for the sake of balance, until it is more than a few."""
    fleet = Fleet(4, PrefixAffinity(PrefixAffinityParameters(free_requests=3)))
    made = [fleet.pick(request(text("hot"))).chosen.slot for _ in range(5)]
    assert len(set(made[:3])) == 1
    assert made[3] == made[4] != made[0]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.integers(0, 2**64 - 1),
    st.floats(1, 4),
)
def test_the_bound_holds(loads: list[int], key: int, bound: float) -> None:
    """With any loads the request goes to an endpoint that has room for it."""
    strategy = PrefixAffinity(PrefixAffinityParameters(load_bound=bound))
    fleet = endpoints(len(loads))
    owner = _owner(strategy, fleet, [key], loads)
    taken = next(load for endpoint, load in zip(fleet, loads, strict=True) if endpoint.address == owner)
    assert taken + 1 <= ceil(bound * (sum(loads) + 1) / len(loads))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120))
def test_no_endpoint_is_driven_over_the_bound(steps: list[tuple[int, bool]]) -> None:
    """Requests that come and go in any order never find an endpoint filled beyond the bound by the last pick."""
    fleet, running = Fleet(4, PrefixAffinity()), []
    for family, ends in steps:
        if ends and running:
            fleet.settle(running.pop(family % len(running)))
            continue
        running.append(fleet.pick(request(text(family))))
        load = fleet.ledger.load(running[-1].chosen.slot).in_flight
        assert load <= ceil(1.25 * len(running) / 4)


@pytest.mark.parametrize(
    "wrong", [{"load_bound": 0.9}, {"prefix_tokens": 0}, {"virtual_nodes": 0}, {"virtual_nodes": 10**6}], ids=repr
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """A bound below the mean cannot be kept, and a ring needs points but not millions of them."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, PrefixAffinityParameters)
