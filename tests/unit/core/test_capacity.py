"""KV capacities and ranks that engines tell, in the registry and in what follows it."""

from __future__ import annotations

from ext_proc.core.following import follow
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change, EndpointSpec, Registry
from tests.unit.core.builders import Fleet, request, text

A, B = "10.0.0.11:8000", "10.0.0.12:8000"


def registry_with(*specs: EndpointSpec) -> Registry:
    """Make a registry with one pool."""
    registry = Registry()
    registry.replace("p", specs)
    return registry


def known(registry: Registry, address: str = A) -> Endpoint:
    """Return an endpoint as it is."""
    return registry.snapshot.by_address[address]


def test_a_capacity_is_learnt_once() -> None:
    """It is seen in endpoint and candidates, slot and generation stay, and the same word again is no change."""
    registry = registry_with(EndpointSpec(address=A), EndpointSpec(address=B, kv_tokens=7))
    before = known(registry)
    change = registry.learn_capacity(A, before.generation, 5000)
    assert change == Change(updated=(known(registry),))
    assert registry.snapshot.endpoints.kv_tokens == (5000, 7)
    assert (known(registry).slot, known(registry).generation) == (before.slot, before.generation)
    assert registry.learn_capacity(A, before.generation, 5000) is None


def test_a_configured_capacity_wins() -> None:
    """What the operator wrote stands, before and after the engine spoke; without it the engine's word counts again."""
    registry = registry_with(EndpointSpec(address=A, kv_tokens=7))
    generation = known(registry).generation
    assert registry.learn_capacity(A, generation, 5000) is None
    registry.replace("p", [EndpointSpec(address=A)])
    assert registry.learn_capacity(A, generation, 5000) is not None
    registry.replace("p", [EndpointSpec(address=A, kv_tokens=7)])
    assert known(registry).kv_tokens == 7
    registry.replace("p", [EndpointSpec(address=A)])
    assert known(registry).kv_tokens == 5000


def test_a_change_of_anything_else_keeps_what_was_learnt() -> None:
    """Neither new labels nor learnt models make an engine's memory unknown, nor the reverse."""
    registry = registry_with(EndpointSpec(address=A))
    generation = known(registry).generation
    registry.learn_capacity(A, generation, 5000)
    registry.learn(A, generation, frozenset({"m"}))
    registry.replace("p", [EndpointSpec(address=A, labels={"gpu": "h100"})])
    assert (known(registry).kv_tokens, known(registry).models) == (5000, {"m"})


def test_a_word_about_somebody_else_is_void() -> None:
    """An address that is gone, or that is another endpoint by now, learns nothing."""
    registry = registry_with(EndpointSpec(address=A))
    generation = known(registry).generation
    assert registry.learn_capacity(B, generation, 5000) is None
    registry.replace("p", [])
    registry.replace("p", [EndpointSpec(address=A)])
    assert registry.learn_capacity(A, generation, 5000) is None
    assert known(registry).kv_tokens is None


def test_ranks_are_learnt_unless_they_are_configured() -> None:
    """The ledger follows; another number later replaces the first, and a change of anything else keeps it."""
    fleet = Fleet(1)
    (endpoint,) = fleet.endpoints
    for ranks in (4, 2):
        change = fleet.registry.learn_ranks(endpoint.address, endpoint.generation, ranks)
        assert change is not None
        follow(change, ledger=fleet.ledger, index=fleet.index)
        assert (fleet.endpoints[0].ranks, fleet.load(0).ranks) == (ranks, ranks)
        assert fleet.registry.snapshot.endpoints.ranks == (ranks,)
    assert fleet.registry.learn_ranks(endpoint.address, endpoint.generation, 2) is None
    fleet.fill("p", endpoint.address, models=endpoint.models, labels={"gpu": "h100"})
    assert (fleet.endpoints[0].ranks, fleet.load(0).ranks) == (2, 2)
    fleet.fill("p", endpoint.address, models=endpoint.models, ranks=8)
    assert fleet.registry.learn_ranks(endpoint.address, endpoint.generation, 4) is None
    assert fleet.load(0).ranks == 8


def test_the_index_follows_the_learnt_capacity() -> None:
    """An engine with a small cache is not believed to hold more than fits: of ten prompts only the last."""
    fleet = Fleet(1)
    for number in range(10):
        fleet.serve(request(text(number)))
    (endpoint,) = fleet.endpoints
    change = fleet.registry.learn_capacity(endpoint.address, endpoint.generation, 2000)
    assert change is not None
    follow(change, ledger=fleet.ledger, index=fleet.index)
    assert fleet.pick(request(text(9))).hit_tokens > 0
    assert fleet.pick(request(text(0))).hit_tokens == 0
