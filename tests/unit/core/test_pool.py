"""The registry of endpoints and its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ext_proc.core.pool import Change, EndpointSpec, Registry
from ext_proc.core.snapshot import Snapshot

if TYPE_CHECKING:
    from ext_proc.core.model import Endpoint

A, B, C = "10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"
CHAT, EMBED = frozenset({"acme/chat-8b"}), frozenset({"acme/embed-1"})


def _spec(address: str, models: frozenset[str] = frozenset(), **rest: object) -> EndpointSpec:
    return EndpointSpec(address=address, models=models, **rest)


def _addresses(endpoints: tuple[Endpoint, ...]) -> set[str]:
    return {endpoint.address for endpoint in endpoints}


def test_an_empty_registry_has_no_candidates_and_serves_nothing() -> None:
    """Before any source has spoken there is nothing to pick from and no model is known."""
    snapshot = Registry().snapshot
    assert snapshot.candidates("acme/chat-8b") == snapshot.candidates(None) == ()
    assert not snapshot.serves("acme/chat-8b")


def test_a_model_finds_its_endpoints_in_every_pool() -> None:
    """A declared model finds those that declare it, whichever pool they are in, and nobody else."""
    registry = Registry()
    registry.replace("p", [_spec(A, CHAT), _spec(B, EMBED)])
    registry.replace("q", [_spec(C, CHAT)])
    assert _addresses(registry.snapshot.candidates("acme/chat-8b")) == {A, C}
    assert registry.snapshot.candidates("acme/chat-70b") == ()


def test_an_endpoint_of_unknown_models_may_serve_any() -> None:
    """Until an engine has said what it serves it takes what nobody else is known to serve."""
    registry = Registry()
    registry.replace("p", [_spec(A, CHAT), _spec(B)])
    assert _addresses(registry.snapshot.candidates("acme/chat-8b")) == {A}
    assert _addresses(registry.snapshot.candidates("acme/other")) == {B}
    assert not registry.snapshot.serves("acme/other")


def test_a_learnt_endpoint_serves_only_what_it_listed() -> None:
    """After learning, requests for other models no longer come, and slot and generation are kept."""
    registry = Registry()
    (endpoint,) = registry.replace("p", [_spec(A)]).added
    change = registry.learn(A, endpoint.generation, EMBED)
    assert change is not None
    assert (change.updated[0].slot, change.updated[0].generation) == (endpoint.slot, endpoint.generation)
    assert registry.snapshot.candidates("acme/chat-8b") == ()
    assert registry.snapshot.candidates("acme/embed-1") == change.updated


@pytest.mark.parametrize(
    ("address", "older", "models"),
    [(B, 0, CHAT), (A, 1, CHAT), (A, 0, frozenset())],
    ids=["unknown address", "earlier generation", "nothing listed"],
)
def test_a_void_answer_teaches_nothing(address: str, older: int, models: frozenset[str]) -> None:
    """An answer of an endpoint that is gone, or one without models, leaves the snapshot as it is."""
    registry = Registry()
    (endpoint,) = registry.replace("p", [_spec(A)]).added
    before = registry.snapshot
    assert registry.learn(address, endpoint.generation - older, models) is None
    assert registry.snapshot is before


def test_a_declaration_outranks_what_the_engine_says() -> None:
    """Declared models are not learnt over, and such an endpoint is not among those to be asked."""
    registry = Registry()
    registry.replace("p", [_spec(A, CHAT), _spec(B)])
    assert registry.learn(A, registry.snapshot.by_address[A].generation, EMBED) is None
    assert _addresses(registry.snapshot.undeclared) == {B}


def test_learning_the_same_again_changes_nothing() -> None:
    """A refresh without news keeps the snapshot object."""
    registry = Registry()
    (endpoint,) = registry.replace("p", [_spec(A)]).added
    registry.learn(A, endpoint.generation, CHAT)
    before = registry.snapshot
    assert registry.learn(A, endpoint.generation, CHAT) is None
    assert registry.snapshot is before


def test_an_engine_with_another_model_is_another_endpoint() -> None:
    """The address has a new owner, which inherits neither slot nor generation nor capacity (E04)."""
    registry = Registry()
    (first,) = registry.replace("p", [_spec(A)]).added
    registry.learn(A, first.generation, CHAT | {"legal"}, frozenset({"legal"}))
    registry.learn_capacity(A, first.generation, 1000)
    change = registry.learn(A, first.generation, EMBED | {"legal"}, frozenset({"legal"}))
    assert change is not None
    assert ([e.generation for e in change.removed], change.updated) == ([first.generation], ())
    (second,) = change.added
    assert second.slot != first.slot
    assert second.generation > first.generation
    assert (second.models, second.kv_tokens) == (EMBED | {"legal"}, None)
    assert registry.snapshot.candidates("acme/embed-1") == (second,)
    assert registry.learn(A, first.generation, CHAT) is None
    assert [e.address for e in registry.snapshot.undeclared] == [A]


def test_an_engine_with_one_more_or_one_less_model_stays_the_same() -> None:
    """Adapters come and go, and so may names."""
    registry = Registry()
    (first,) = registry.replace("p", [_spec(A)]).added
    for models, secondary in (
        (CHAT, frozenset()),
        (CHAT | EMBED, EMBED),
        (CHAT | EMBED, frozenset()),
        (EMBED, frozenset()),
    ):
        change = registry.learn(A, first.generation, models, secondary)
        assert change is not None
        assert [each.generation for each in change.updated] == [first.generation]


def test_the_models_of_a_pool_hold_for_endpoints_that_declare_none() -> None:
    """A pool's models are a default, not an addition."""
    registry = Registry()
    registry.replace("p", [_spec(A), _spec(B, EMBED)], models=CHAT)
    assert _addresses(registry.snapshot.candidates("acme/chat-8b")) == {A}
    assert registry.snapshot.undeclared == ()


def test_a_model_of_an_empty_pool_is_known_but_has_no_candidate() -> None:
    """A model scaled to zero can be told from one nobody has heard of."""
    registry = Registry()
    registry.replace("p", [_spec(A)], models=CHAT)
    registry.replace("p", [], models=CHAT)
    assert registry.snapshot.serves("acme/chat-8b")
    assert registry.snapshot.candidates("acme/chat-8b") == ()


@pytest.mark.parametrize(
    ("default_pool", "of_q", "expected"),
    [(None, CHAT, {A, B}), (None, EMBED, set()), ("p", EMBED, {A}), ("gone", EMBED, set())],
    ids=[
        "one model",
        "several models",
        "several models and a default pool",
        "default pool without endpoints",
    ],
)
def test_where_a_request_without_a_model_may_go(
    default_pool: str | None, of_q: frozenset[str], expected: set[str]
) -> None:
    """It goes to the default pool, without one to all if they serve one model, else nowhere."""
    registry = Registry(default_pool)
    registry.replace("p", [_spec(A, CHAT)])
    registry.replace("q", [_spec(B, of_q)])
    assert _addresses(registry.snapshot.candidates(None)) == expected


def test_adapters_and_aliases_do_not_make_a_second_base_model() -> None:
    """One base model with a LoRA adapter is still one model to a request that names none."""
    registry = Registry()
    (endpoint,) = registry.replace("p", [_spec(A)]).added
    registry.learn(A, endpoint.generation, CHAT | {"legal"}, secondary=frozenset({"legal"}))
    assert registry.snapshot.sole_model == "acme/chat-8b"
    assert _addresses(registry.snapshot.candidates(None)) == {A}
    assert _addresses(registry.snapshot.candidates("legal")) == {A}


def test_a_name_that_is_a_base_model_somewhere_counts_as_one() -> None:
    """An adapter's name at one engine does not hide a base model of that name at another."""
    registry = Registry()
    first, _ = registry.replace("p", [_spec(A), _spec(B, EMBED)]).added
    registry.learn(A, first.generation, CHAT | EMBED, secondary=EMBED)
    assert registry.snapshot.sole_model is None


@pytest.mark.parametrize(
    ("configured", "pools", "expected"),
    [(None, ["p"], "p"), (None, ["p", "q"], None), ("q", ["p"], "q"), (None, [], None)],
    ids=["the only pool", "none of several", "the configured one", "no pool"],
)
def test_the_default_pool(configured: str | None, pools: list[str], expected: str | None) -> None:
    """It is the configured pool, else the only one."""
    registry = Registry(configured)
    for pool in pools:
        registry.replace(pool, [])
    assert registry.snapshot.default_pool == expected


def test_the_default_pool_can_be_changed() -> None:
    """A reload moves unsteered traffic in the next snapshot, and the same name again is no change."""
    registry = Registry("p")
    registry.replace("p", [_spec(A, CHAT)])
    registry.replace("q", [_spec(B, EMBED)])
    registry.set_default_pool("q")
    after = registry.snapshot
    assert _addresses(after.candidates(None)) == {B}
    registry.set_default_pool("q")
    assert registry.snapshot is after


def test_a_removed_pool_is_forgotten_even_if_it_was_empty() -> None:
    """Its models are unknown then, and the pool that remains is the default."""
    registry = Registry()
    registry.replace("p", [], models=CHAT)
    registry.replace("q", [])
    registry.remove_pool("p")
    assert registry.snapshot.default_pool == "q"
    assert not registry.snapshot.serves("acme/chat-8b")


@pytest.mark.parametrize(
    "other",
    [_spec(A, kv_tokens=9), _spec(A, prefill_rate=9.0), _spec(A, labels={"gpu": "h100"})],
    ids=["kv_tokens", "prefill_rate", "labels"],
)
def test_an_edit_that_is_no_change_of_identity_keeps_state(other: EndpointSpec) -> None:
    """Slot, generation and learnt models survive an edit of capacities and labels."""
    registry = Registry()
    (old,) = registry.replace("p", [_spec(A)]).added
    registry.learn(A, old.generation, CHAT)
    change = registry.replace("p", [other])
    (endpoint,) = change.updated
    assert (change.added, change.removed) == ((), ())
    assert (endpoint.slot, endpoint.generation, endpoint.models) == (old.slot, old.generation, CHAT)
    assert (endpoint.kv_tokens, endpoint.prefill_rate) == (other.kv_tokens, other.prefill_rate)
    assert endpoint.labels == other.labels


def test_other_declared_models_make_a_different_endpoint() -> None:
    """The engine behind the address is another one, so it shares neither slot nor generation with the old."""
    registry = Registry()
    (old,) = registry.replace("p", [_spec(A, CHAT)]).added
    change = registry.replace("p", [_spec(A, EMBED)])
    (endpoint,) = change.added
    assert change.removed == (old,)
    assert endpoint.generation > old.generation
    assert endpoint.slot != old.slot


def test_an_address_that_was_gone_inherits_nothing() -> None:
    """The same address added again after a removal has another generation."""
    registry = Registry()
    (old,) = registry.replace("p", [_spec(A, CHAT)]).added
    assert registry.replace("p", []).removed == (old,)
    (endpoint,) = registry.replace("p", [_spec(A, CHAT)]).added
    assert endpoint.generation > old.generation


@pytest.mark.parametrize("delete_first", [True, False], ids=["delete seen first", "add seen first"])
def test_an_address_reused_by_another_pool(delete_first: bool) -> None:
    """In either order of events the address ends as the other pool's endpoint, and inherits nothing (E04)."""
    registry = Registry()
    (old,) = registry.replace("p", [_spec(A, CHAT)]).added
    steps = [("p", []), ("q", [_spec(A, EMBED)])]
    removed: list[Endpoint] = []
    for pool, specs in steps if delete_first else reversed(steps):
        removed += registry.replace(pool, specs).removed
    (endpoint,) = registry.snapshot.endpoints
    assert (endpoint.pool, removed) == ("q", [old])
    assert endpoint.generation > old.generation
    assert registry.snapshot.candidates("acme/chat-8b") == ()


def test_an_address_in_two_pools_belongs_to_the_latest_claim() -> None:
    """It counts once, an edit of the earlier pool does not win it back, the end of the later one does."""
    registry = Registry()
    registry.replace("p", [_spec(A)])
    registry.replace("q", [_spec(A)])
    registry.replace("p", [_spec(A), _spec(B)])
    assert [(e.address, e.pool) for e in registry.snapshot.endpoints] == [(A, "q"), (B, "p")]
    registry.remove_pool("q")
    assert registry.snapshot.by_address[A].pool == "p"


def test_a_repeated_address_is_one_endpoint() -> None:
    """An address listed twice is counted once and the last entry holds (E20)."""
    registry = Registry()
    registry.replace("p", [_spec(A, kv_tokens=1), _spec(A, kv_tokens=2)])
    assert [endpoint.kv_tokens for endpoint in registry.snapshot.endpoints] == [2]


def test_the_same_list_again_changes_nothing() -> None:
    """A reload without an edit gives a false change and keeps the snapshot object."""
    registry = Registry()
    registry.replace("p", [_spec(A, CHAT)])
    before = registry.snapshot
    assert registry.replace("p", [_spec(A, CHAT)]) == Change()
    assert registry.snapshot is before
    assert not registry.remove_pool("unknown")


def test_a_snapshot_in_hand_never_changes() -> None:
    """Neither later changes nor the caller's own objects alter a snapshot, and its mappings are read-only."""
    labels = {"gpu": "h100"}
    registry = Registry()
    registry.replace("p", [_spec(A, CHAT, labels=labels)])
    held = registry.snapshot
    labels["gpu"] = "none"
    registry.remove_pool("p")
    assert held.by_address[A].labels == {"gpu": "h100"}
    assert _addresses(held.candidates("acme/chat-8b")) == {A}
    with pytest.raises(TypeError):
        held.by_address[B] = held.endpoints[0]
    with pytest.raises(AttributeError):
        held.endpoints = ()


_ADDRESSES = st.sampled_from([f"10.0.0.{n}:8000" for n in range(6)])
_POOLS = st.sampled_from(["p", "q", "r"])
_MODELS = st.frozensets(st.sampled_from(["a", "b"]))
_SPECS = st.lists(st.builds(EndpointSpec, address=_ADDRESSES, models=_MODELS, kv_tokens=st.none() | st.integers(0, 3)))


class RegistryMachine(RuleBasedStateMachine):
    """Random lists, removals and answers; consumers are fed by changes only, as the picker's state is."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.listed: dict[str, set[str]] = {}
        self.followed: dict[int, Endpoint] = {}
        self.generations: set[int] = set()
        self.held: list[tuple[Snapshot, bytes]] = []

    def follow(self, change: Change) -> None:
        """Hold what a consumer would hold that only hears of changes."""
        for endpoint in change.added:
            assert endpoint.slot not in self.followed
            assert endpoint.generation not in self.generations
            self.followed[endpoint.slot] = endpoint
            self.generations.add(endpoint.generation)
        for endpoint in change.removed:
            assert self.followed.pop(endpoint.slot).generation == endpoint.generation
        for endpoint in change.updated:
            assert self.followed[endpoint.slot].generation == endpoint.generation
            self.followed[endpoint.slot] = endpoint
        snapshot = self.registry.snapshot
        self.held.append((snapshot, repr(snapshot).encode()))

    @rule(pool=_POOLS, specs=_SPECS)
    def replace(self, pool: str, specs: list[EndpointSpec]) -> None:
        """A source gives a list."""
        self.listed[pool] = {each.address for each in specs}
        self.follow(self.registry.replace(pool, specs))

    @rule(pool=_POOLS)
    def remove(self, pool: str) -> None:
        """A pool is deleted."""
        self.listed.pop(pool, None)
        self.follow(self.registry.remove_pool(pool))

    @rule(address=_ADDRESSES, models=_MODELS)
    def learn(self, address: str, models: frozenset[str]) -> None:
        """An engine answers."""
        endpoint = self.registry.snapshot.by_address.get(address)
        generation = endpoint.generation if endpoint else 0
        self.follow(self.registry.learn(address, generation, models) or Change())

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        """The snapshot holds what the sources list, and a consumer of changes holds the same."""
        snapshot = self.registry.snapshot
        assert {e.slot: e for e in snapshot.endpoints} == self.followed
        assert set(snapshot.by_address) == set().union(*self.listed.values())
        assert all(e.address in self.listed[e.pool] for e in snapshot.endpoints)
        assert sum(map(len, snapshot.by_pool.values())) == len(snapshot.endpoints)

    @invariant()
    def look_ups_agree_with_the_endpoints(self) -> None:
        """The look-up by model equals a search through all endpoints."""
        snapshot = self.registry.snapshot
        for model in ("a", "b", "c"):
            serving = tuple(e for e in snapshot.endpoints if model in e.models)
            unknown = tuple(e for e in snapshot.endpoints if not e.models)
            assert snapshot.candidates(model) == (serving or unknown)

    @invariant()
    def slots_stay_small(self) -> None:
        """Freed slots are used again."""
        assert all(slot < 12 for slot in self.followed)

    @invariant()
    def snapshots_grow_in_version_and_never_change(self) -> None:
        """A snapshot taken earlier still reads the same."""
        versions = [snapshot.version for snapshot, _ in self.held]
        assert versions == sorted(versions)
        assert all(repr(snapshot).encode() == text for snapshot, text in self.held[-5:])


RegistryMachine.TestCase.__doc__ = "Whatever sources say, slots are unique, snapshots hold and nothing is lost."
TestRegistry = RegistryMachine.TestCase


def test_each_new_snapshot_is_told_of() -> None:
    """Whoever listens need not look again and again; what changes nothing is no news, nor is anything after the end."""
    registry = Registry()
    heard: list[int] = []
    end = registry.subscribe(lambda: heard.append(registry.snapshot.version))
    registry.replace("p", [EndpointSpec(address="10.0.0.1:1")])
    registry.replace("p", [EndpointSpec(address="10.0.0.1:1")])
    (endpoint,) = registry.snapshot.endpoints
    registry.learn(endpoint.address, endpoint.generation, frozenset({"m"}))
    end()
    registry.remove_pool("p")
    assert heard == [1, 2]
