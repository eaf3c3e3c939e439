"""The decision: who may be chosen, who is chosen, what is booked and what is said about it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.errors import ModelNotFound, ModelRequired, NoReadyEndpoint, Refusal, SubsetEmpty
from ext_proc.core.load import Load
from ext_proc.core.model import Ending, Endpoint, InferenceRequest, Operation, Unhashed
from ext_proc.core.picker import EndpointPicker, Rejection
from ext_proc.core.strategies import Context, Ranking
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_tokens import LeastTokens
from ext_proc.core.strategies.round_robin import RoundRobin
from ext_proc.core.strategies.session_affinity import SessionAffinity
from tests.unit.core.builders import CHAT, Fleet, request, shares, text

EMBED = frozenset({"acme/embed-1"})


@pytest.fixture
def fleet() -> Fleet:
    """Three idle equal endpoints."""
    return Fleet(3)


def _two_pools() -> Fleet:
    fleet = Fleet(2)
    fleet.fill("q", "10.0.0.17:8000", models=EMBED)
    return fleet


def test_a_decision_is_booked_at_once(fleet: Fleet) -> None:
    """The next decision sees the request in the ledger and its prompt in the index."""
    prompt = text("a")
    decision = fleet.pick(request(prompt))
    place = fleet.endpoints.index(decision.chosen)
    assert (fleet.load(place).in_flight, fleet.load(place).tokens) == (1, 1024 + 300)
    assert fleet.load(place).busy_until == fleet.now + decision.terms[place].prefill
    assert fleet.index.blocks(decision.chosen.slot) == decision.chain_length == 10


def test_a_known_prefix_draws_the_next_turn(fleet: Fleet) -> None:
    """A request goes where most of its prompt is cached, and says how many tokens that is."""
    first = fleet.serve(request(text("a")))
    second = fleet.pick(request(text("a") + text("b", 1024)))
    assert second.chosen == first.chosen
    assert (second.reason, second.hit_tokens) == ("prefix", 1024)


def test_a_request_without_a_model_finds_the_prefix_of_the_sole_one(fleet: Fleet) -> None:
    """Where one model is served, leaving its name out changes nothing about what is cached."""
    first = fleet.serve(request(text("a")))
    second = fleet.pick(request(text("a"), model=None))
    assert (second.chosen, second.reason, second.hit_tokens) == (first.chosen, "prefix", 1024)


def test_predicted_tokens_never_exceed_the_prompt(fleet: Fleet) -> None:
    """A prompt whose tokens are long in bytes is not said to be cached beyond its end."""
    fleet.serve(request(text("a"), prompt_tokens=500))
    assert fleet.pick(request(text("a"), prompt_tokens=500)).hit_tokens == 500


def test_the_prefix_is_left_when_its_endpoint_is_busy(fleet: Fleet) -> None:
    """With a long queue in front of the cached prefix an idle endpoint answers sooner."""
    first = fleet.serve(request(text("a")))
    fleet.occupy(fleet.endpoints.index(first.chosen), 1, tokens=50_000)
    second = fleet.pick(request(text("a")))
    assert second.chosen != first.chosen
    assert second.reason in {"wait", "tie"}


def test_fallbacks_follow_by_cost() -> None:
    """After the chosen endpoint come the next cheapest ones, as many as asked for."""
    fleet = Fleet(4, LeastRequest(), fallbacks=2)
    for place, requests in enumerate((3, 1, 2, 4)):
        fleet.occupy(place, requests)
    assert [endpoint.slot for endpoint in fleet.pick().endpoints] == [1, 2, 0]


@given(st.integers(1, 6), st.integers(0, 8), st.lists(st.integers(0, 5), max_size=5))
def test_endpoints_of_a_decision_are_distinct(count: int, fallbacks: int, busy: list[int]) -> None:
    """No endpoint is named twice, whatever ties there are and however few endpoints."""
    fleet = Fleet(count, LeastRequest(), fallbacks=fallbacks)
    for place in busy:
        fleet.occupy(place % count, 1)
    named = [endpoint.slot for endpoint in fleet.pick().endpoints]
    assert len(named) == len(set(named)) == min(fallbacks + 1, count)


def test_equal_endpoints_share_the_fallbacks() -> None:
    """Retries of requests that were spread over equal endpoints are spread too."""
    fleet = Fleet(5, fallbacks=1)
    decisions = [fleet.serve() for _ in range(200)]
    assert len({decision.endpoints[1].address for decision in decisions}) == 5


class Flat:
    """Finds every candidate as good as any other."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Cost nothing."""
        return Ranking([0.0] * len(candidates))


def test_ties_go_to_the_fewest_in_flight() -> None:
    """Of equally cheap endpoints those with the fewest requests are taken, each of them now and then."""
    fleet = Fleet(4, Flat())
    fleet.occupy(0, 1)
    fleet.occupy(2, 2)
    lookup = request(operation=Operation.LOOKUP)
    assert {fleet.pick(lookup).chosen.slot for _ in range(40)} == {1, 3}


def test_a_session_decides_only_between_equals(fleet: Fleet) -> None:
    """A conversation stays where it was while nothing else speaks for another endpoint."""
    first = fleet.serve(request(session="s"))
    again = fleet.serve(request(session="s"))
    assert (again.chosen, again.reason) == (first.chosen, "session")
    fleet.occupy(fleet.endpoints.index(first.chosen), 4, tokens=9000)
    assert fleet.pick(request(session="s")).chosen != first.chosen


def test_a_session_has_a_place_for_each_model() -> None:
    """A client that uses two models in turn finds the same endpoint of each again."""
    fleet = Fleet(4)
    fleet.fill("q", *[f"10.0.0.{place}:8000" for place in range(31, 35)], models=EMBED)
    turns = [fleet.serve(request(session="s", model=model)) for model in ("acme/chat-8b", "acme/embed-1") * 5]
    assert len(shares(turns)) == 2


def test_free_requests_claim_nothing(fleet: Fleet) -> None:
    """A55: counting tokens adds no load, no queue and no prefix."""
    for _ in range(50):
        fleet.pick(request(text("a"), operation=Operation.COUNT_TOKENS))
    assert len(fleet.ledger) == 50
    assert all(fleet.load(place) == Load() for place in range(3))
    assert len(fleet.index) == 0


def test_a_request_without_usable_prompt_leaves_the_index_alone(fleet: Fleet) -> None:
    """What could not be read is placed by load, and neither reads nor writes prefix memory."""
    fleet.serve(request(text("a")))
    blocks = len(fleet.index)
    decision = fleet.pick(request(text("a"), unhashed=Unhashed.NOT_JSON))
    assert (decision.hit_tokens, decision.chain_length, len(fleet.index)) == (0, 0, blocks)


def test_what_waits_for_an_outcome_is_small() -> None:
    """A lease holds neither the prompt nor the terms of the fleet, only the hits of the named endpoints."""
    fleet = Fleet(50)
    decision = fleet.pick(request(text("a")))
    lease = fleet.ledger.end(decision.id, fleet.now)
    assert lease is not None
    assert lease.decision.request.prompt == decision.request.prompt == b""
    assert (len(lease.decision.terms), len(lease.decision.fallback_hits)) == (0, 2)


def test_terms_explain_every_candidate(fleet: Fleet) -> None:
    """An explanation shows each candidate as it was when the decision was made, and bears slices."""
    fleet.occupy(1, 2, tokens=8000)
    decision = fleet.pick(request(text("a")))
    fleet.occupy(1, 5)
    assert [terms.in_flight for terms in decision.terms] == [0, 2, 0]
    assert [terms.endpoint for terms in decision.terms[1:]] == list(fleet.endpoints[1:])
    assert decision.terms[1].cost > decision.terms[0].cost == decision.terms[0].prefill


def test_terms_of_a_plain_strategy_show_hits_and_load() -> None:
    """Even a strategy that explains nothing leaves tokens held and requests in flight to see."""
    fleet = Fleet(1, LeastRequest())
    fleet.pick(request(text("a")))
    (terms,) = fleet.pick(request(text("a"))).terms
    assert (terms.cost, terms.hit_tokens, terms.in_flight, terms.queue) == (1.0, 1024, 1, 0.0)


def test_decision_ids_are_unique(fleet: Fleet) -> None:
    """Every decision has an id of its own that begins with the instance's name."""
    ids = {fleet.pick().id for _ in range(100)}
    assert len(ids) == 100
    assert all(name.startswith("test-") for name in ids)


def test_the_filters_say_what_they_left() -> None:
    """A decision lists each filter with the endpoints before and after it."""
    fleet = _two_pools()
    for _ in range(2):
        fleet.settle(fleet.pick(subset={"10.0.0.11:8000"}), Ending.RESET)
    decision = fleet.pick(subset={"10.0.0.11:8000", "10.0.0.12:8000"})
    reports = [str(report) for report in decision.filters]
    assert reports == [
        "model: 2 of 3 match",
        "subset: 2 of 2 match",
        "lifecycle: 2 of 2 match",
        "sleep: 2 of 2 match",
        "health: 1 of 2 match",
    ]
    assert decision.reason == "only_candidate"


@pytest.mark.parametrize(
    ("asked", "subset", "expected"),
    [
        ({"model": "acme/none"}, None, ModelNotFound),
        ({"model": None}, None, ModelRequired),
        ({}, set(), SubsetEmpty),
        ({}, {"10.9.9.9:1"}, SubsetEmpty),
        ({"model": "acme/none"}, {"10.0.0.11:8000"}, ModelNotFound),
    ],
    ids=["unknown model", "no model", "empty subset", "strange subset", "unknown model in a subset"],
)
def test_a_request_nobody_may_serve_is_refused(
    asked: dict[str, None], subset: set[str] | None, expected: type[Refusal]
) -> None:
    """Each reason for having no candidate has its own refusal, and nothing is booked."""
    fleet = _two_pools()
    assert type(fleet.refusal(request(**asked), subset=subset)) is expected
    assert len(fleet.ledger) == 0


def test_an_empty_fleet_is_not_ready() -> None:
    """Without endpoints the answer is 503 with a time to come back, not a missing model."""
    refusal = Fleet(0).refusal()
    assert type(refusal) is NoReadyEndpoint
    assert refusal.retry_after


def test_a_known_model_without_endpoints_is_not_ready() -> None:
    """A model of a pool that is empty at the moment is 503, not 404."""
    fleet = _two_pools()
    fleet.registry.replace("q", [], models=EMBED)
    assert type(fleet.refusal(request(model="acme/embed-1"))) is NoReadyEndpoint


def test_names_of_strangers_are_shown_safely() -> None:
    """A model name in an error message is cut and holds no control characters or broken text."""
    message = str(Fleet(1).refusal(request(model="a\nb\ud800" + "x" * 1000)))
    assert "a?b?x" in message
    assert len(message) < 200


def test_a_subset_is_obeyed(fleet: Fleet) -> None:
    """Only addresses that the data plane allows are chosen or named as fallbacks."""
    subset = {"10.0.0.12:8000", "10.0.0.13:8000"}
    for _ in range(20):
        assert {endpoint.address for endpoint in fleet.pick(subset=subset).endpoints} == subset


def test_a_lookup_without_model_goes_to_the_default_pool() -> None:
    """Where several models are served, what needs no model has a home, and other requests are asked for one."""
    fleet = Fleet(2, default_pool="p")
    fleet.fill("q", "10.0.0.17:8000", models=EMBED)
    chosen = {fleet.pick(request(model=None, operation=Operation.LOOKUP)).chosen.pool for _ in range(10)}
    assert chosen == {"p"}


@pytest.mark.parametrize(("pools", "expected"), [(1, True), (2, False)])
def test_a_body_is_needed_only_to_tell_models_apart(pools: int, *, expected: bool) -> None:
    """With one model a request can be placed before its body is seen."""
    assert (Fleet(1) if pools == 1 else _two_pools()).picker.picks_without_model() is expected


def test_a_pool_without_strategy_is_served_all_the_same(fleet: Fleet) -> None:
    """A pool that no strategy is configured for is balanced by requests in flight."""
    fleet.picker.strategies = {}
    assert fleet.pick().strategy == "least-request"


def test_decisions_depend_on_nothing_but_their_arguments() -> None:
    """The same requests at the same times with the same generator are placed alike."""
    runs = [[fleet.serve(request(text(turn % 7))).chosen.slot for turn in range(60)] for fleet in (Fleet(5), Fleet(5))]
    assert runs[0] == runs[1]


def test_a_rejection_is_data(fleet: Fleet) -> None:
    """A request that is not placed is answered, not raised, and tells what the filters left."""
    picker: EndpointPicker = fleet.picker
    made = picker.pick(request(model="x"), 0.0, fleet.generator)
    assert isinstance(made, Rejection)
    assert [str(report) for report in made.filters] == ["model: 0 of 3 match"]


def test_one_adapter_of_one_endpoint() -> None:
    """A49: an adapter goes to the endpoint that has it, apart from its base model, and is 404 when it is gone."""
    fleet = Fleet(2)
    fleet.fill("q", "10.0.0.13:8000", models=CHAT | {"acme/chat-8b-legal"})
    fleet.serve(request(text("a")))
    legal = request(text("a"), model="acme/chat-8b-legal")
    assert (fleet.pick(legal).chosen.address, fleet.pick(legal).hit_tokens) == ("10.0.0.13:8000", 1024)
    fleet.fill("q")
    assert type(fleet.refusal(legal)) is ModelNotFound


def test_only_a_strategy_that_looks_at_prefixes_claims_one(fleet: Fleet) -> None:
    """A strategy that ranks by something else does not say that the prefix decided."""
    fleet.serve(request(text("a")))
    assert fleet.pick(request(text("a"))).reason == "prefix"
    plain = Fleet(3, RoundRobin())
    plain.serve(request(text("a")))
    assert {plain.pick(request(text("a"))).reason for _ in range(3)} == {"rank"}


def test_a_model_may_have_a_strategy_of_its_own() -> None:
    """It goes before that of the pool, for requests for that model and no others."""
    fleet = Fleet(2, models=frozenset({"acme/chat-8b", "acme/legal"}))
    fleet.picker.model_strategies = {"acme/legal": ("own", LeastTokens())}
    assert fleet.pick(request(model="acme/legal")).strategy == "own"
    assert fleet.pick(request(model="acme/chat-8b")).strategy == "tried"


def test_a_request_without_a_model_takes_the_strategy_of_the_only_one() -> None:
    """Where one model is served, leaving its name out changes nothing."""
    fleet = Fleet(2)
    fleet.picker.model_strategies = {"acme/chat-8b": ("own", LeastTokens())}
    lookup = request(model=None, operation=Operation.LOOKUP)
    assert fleet.pick(lookup).strategy == "own"
    fleet.fill("q", "10.0.0.99:8000", models=frozenset({"other"}))
    assert fleet.pick(request(model="other")).strategy == "least-request"


def test_a_twin_neither_moves_the_turn_of_a_models_strategy_nor_touches_sessions() -> None:
    """What a dry run asks of strategies and sessions is its own copy."""
    fleet = Fleet(3, SessionAffinity())
    fleet.pick(request(session="old"))
    fleet.pick(request(session="new"))
    fleet.picker.model_strategies = {"other": ("round-robin", RoundRobin())}
    fleet.fill("q", "10.0.0.98:8000", "10.0.0.99:8000", models=frozenset({"other"}))
    twin, generator = fleet.picker.twin(fleet.notes), random.Random(1)
    for _ in range(3):
        twin.choose(request(session="old"), fleet.now, generator)
        twin.choose(request(model="other"), fleet.now, generator)
    assert [name.partition("\n")[2] for name in fleet.picker.sessions._tied] == ["old", "new"]
    made = [fleet.pick(request(model="other")).chosen.address for _ in range(2)]
    assert made == ["10.0.0.98:8000", "10.0.0.99:8000"]
