"""The gate that leaves out endpoints at their caps."""

from __future__ import annotations

from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.errors import Saturated
from ext_proc.core.filters import Filters
from ext_proc.core.model import Endpoint, Operation
from tests.unit.core.builders import Fleet, request


def gate(fleet: Fleet, **pools: Caps) -> CapacityGate:
    """Put a gate before a fleet."""
    made = CapacityGate(fleet.registry, fleet.ledger, fleet.expectations)
    made.configure(pools)
    fleet.picker._filters = Filters((made,))
    return made


def admitted(fleet: Fleet, made: CapacityGate, **asked: object) -> list[int]:
    """Return the places of those with room."""
    left = made.admit(fleet.endpoints, request(**asked), fleet.now, fleet.generator)
    return [fleet.endpoints.index(endpoint) for endpoint in left]


def test_without_caps_the_candidates_come_back_as_they_are() -> None:
    """The very same object, which is the fast path; also where there are caps and everybody has room."""
    fleet = Fleet(3)
    candidates = fleet.registry.snapshot.endpoints
    for made in (gate(fleet), gate(fleet, p=Caps(requests=1))):
        assert made.admit(candidates, request(), fleet.now, fleet.generator) is candidates


def test_an_endpoint_with_as_many_requests_as_it_may_hold_is_left_out() -> None:
    """Until one of them ends; with all full, the refusal says so."""
    fleet = Fleet(2)
    made = gate(fleet, p=Caps(requests=2))
    (first, _) = fleet.occupy(0, 2)
    assert admitted(fleet, made) == [1]
    fleet.occupy(1, 2)
    assert isinstance(fleet.refusal(), Saturated)
    fleet.settle(first)
    assert admitted(fleet, made) == [0]


def test_caps_that_nobody_can_count_hold_nobody_up() -> None:
    """Ends of requests are not heard of, so all would seem full for ever; candidates come back as they are."""
    fleet = Fleet(2)
    made = gate(fleet, p=Caps(requests=1))
    fleet.occupy(0, 1), fleet.occupy(1, 1)
    assert admitted(fleet, made) == []
    made.is_suspended = True
    assert made.admit(fleet.endpoints, request(), fleet.now, fleet.generator) is fleet.endpoints


def test_tokens_count_the_prompt_and_the_expected_answer() -> None:
    """A request that would not fit is kept away; one that is larger than the cap may go where nothing runs."""
    fleet = Fleet(2)
    made = gate(fleet, p=Caps(tokens=1000))
    fleet.pick(request(prompt_tokens=500, output_tokens=100), subset={fleet.endpoints[0].address})
    assert admitted(fleet, made, prompt_tokens=300, output_tokens=100) == [0, 1]
    assert admitted(fleet, made, prompt_tokens=300, output_tokens=101) == [1]
    assert admitted(fleet, made, prompt_tokens=5000) == [1]


def test_an_endpoint_may_have_caps_of_its_own() -> None:
    """What it does not say itself is as in its pool; a change applies at once."""
    fleet = Fleet(1, caps=Caps(requests=3))
    made = gate(fleet, p=Caps(requests=1, tokens=100_000))
    fleet.occupy(0, 2)
    assert admitted(fleet, made) == [0]
    assert admitted(fleet, made, prompt_tokens=100_000) == []
    fleet.fill("p", fleet.endpoints[0].address, models=fleet.endpoints[0].models)
    assert admitted(fleet, made) == []
    made.configure({})
    assert admitted(fleet, made) == [0]


def test_what_costs_an_engine_nothing_is_not_held_up() -> None:
    """Counting tokens and looking up models claim no place."""
    fleet = Fleet(1)
    made = gate(fleet, p=Caps(requests=1))
    fleet.occupy(0, 1)
    assert admitted(fleet, made, operation=Operation.LOOKUP) == [0]


def test_caps_of_an_endpoint_go_over_those_of_its_pool() -> None:
    """Each for itself."""
    assert Caps(requests=1).over(Caps(requests=2, tokens=3)) == Caps(1, 3)
    assert NO_CAPS.over(Caps(tokens=3)) == Caps(None, 3)
    assert Caps(tokens=5).over(NO_CAPS) == Caps(tokens=5)


def test_tokens_count_where_a_cap_is_on_tokens() -> None:
    """Which measure holds for the predicted wait."""
    fleet = Fleet(1)
    slots = [endpoint.slot for endpoint in fleet.endpoints]
    for caps, counts in ((Caps(requests=1), False), (Caps(tokens=1), True)):
        made = gate(fleet, p=caps)
        candidates: tuple[Endpoint, ...] = fleet.endpoints
        made.admit(candidates, request(), fleet.now, fleet.generator)
        assert made.counts_tokens(slots) is counts


def test_the_caps_that_hold_can_be_asked_for() -> None:
    """An endpoint's own over those of its pool, as they are now; an unknown slot has none."""
    fleet = Fleet(1, caps=Caps(requests=3))
    made = gate(fleet, p=Caps(requests=1, tokens=100_000))
    slot = fleet.endpoints[0].slot
    assert made.caps(slot) == Caps(3, 100_000)
    assert made.caps(slot + 1) == NO_CAPS
    made.configure({"p": Caps(tokens=5)})
    assert made.caps(slot) == Caps(3, 5)
