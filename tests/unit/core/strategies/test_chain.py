"""chain, and the conditions of its filters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ext_proc.core.explanation import costs
from ext_proc.core.following import follow
from ext_proc.core.knowledge import Knowledge
from ext_proc.core.load import Load
from ext_proc.core.model import Ending, Endpoint
from ext_proc.core.pool import EndpointSpec
from ext_proc.core.strategies.chain import Chain, ChainParameters
from ext_proc.core.strategies.conditions import Condition
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.prefix_affinity import PrefixAffinity
from ext_proc.core.strategies.session_affinity import SessionAffinity
from ext_proc.core.strategies.weighted import Weighted
from tests.unit.core.builders import CHAT, Fleet, context, endpoints, request, text
from tests.unit.core.strategies.test_weighted import View, Views


def _chain(*filters: dict[str, Any], then: Any = None) -> Chain:
    return Chain(msgspec.convert({"filters": filters}, ChainParameters), then=then or LeastRequest())


def _met(condition: dict[str, Any], candidates: tuple[Endpoint, ...], **knowledge: Any) -> list[bool]:
    loads = [Load(slot) for slot in range(len(candidates))]
    return msgspec.convert(condition, Condition).met(candidates, context(loads, knowledge=Knowledge(**knowledge)))


def test_labels_must_all_be_equal() -> None:
    """An endpoint without the label, or with another value, fails."""
    plain = endpoints(1)[0]
    rows = [{"gpu": "h100", "zone": "a"}, {"gpu": "h100"}, {"gpu": "l40s", "zone": "a"}, {}]
    candidates = tuple(msgspec.structs.replace(plain, labels=labels) for labels in rows)
    assert _met({"labels": {"gpu": "h100", "zone": "a"}}, candidates) == [True, False, False, False]


def test_requests_in_flight_are_capped() -> None:
    """The request itself must still fit."""
    assert _met({"max_in_flight": 2}, endpoints(4)) == [True, True, False, False]


@pytest.mark.parametrize("condition", [{"max_kv_usage": 0.5}, {"max_waiting": 3}], ids=["kv_usage", "waiting"])
def test_an_engine_that_says_nothing_passes(condition: dict[str, float]) -> None:
    """What is known must be within the limit, what is not known is given the benefit of the doubt."""
    views = Views(View(waiting=3, kv_usage=0.5), View(waiting=4, kv_usage=0.6), View(), None)
    assert _met(condition, endpoints(4), engines=views) == [True, False, True, True]
    assert _met(condition, endpoints(2)) == [True, True]


def test_a_bad_name_is_filtered_out() -> None:
    """An endpoint whose reputation is below the limit fails."""
    candidates = endpoints(2)
    knowledge = Knowledge()
    knowledge.reputations.note(candidates[1], Ending.OK, 0.0)
    for _ in range(9):
        knowledge.reputations.note(candidates[0], Ending.RESET, 0.0)
    seen = context([Load(), Load()], knowledge=knowledge)
    assert Condition(min_score=0.5).met(candidates, seen) == [False, True]


def test_a_filter_narrows_what_is_ranked() -> None:
    """The busiest endpoint is chosen if it is the only one that passes, and the decision says how many did."""
    fleet = Fleet(3, _chain({"max_in_flight": 2}))
    fleet.occupy(0, 2)
    fleet.occupy(1, 1)
    fleet.occupy(2, 2)
    decision = fleet.pick()
    assert decision.chosen == fleet.endpoints[1]
    assert list(map(str, decision.filters))[-1] == "max_in_flight: 1 of 3 match"


def test_filters_apply_one_after_the_other() -> None:
    """The second one sees only who passed the first."""
    chain = _chain({"labels": {"gpu": "l40s"}}, {"max_in_flight": 1})
    plain = endpoints(3)
    labels = ("h100", "l40s", "l40s")
    candidates = tuple(msgspec.structs.replace(e, labels={"gpu": g}) for e, g in zip(plain, labels, strict=True))
    ranking = chain.rank(request(), candidates, context([Load(0), Load(1), Load(0)]))
    assert ranking.costs.index(min(ranking.costs)) == 2
    assert list(map(str, ranking.filters)) == ["labels: 2 of 3 match", "max_in_flight: 1 of 2 match"]


def test_a_filter_that_would_leave_nobody_is_skipped_and_said_so() -> None:
    """A request is not refused because all endpoints are busy; later filters still apply."""
    fleet = Fleet(2, _chain({"labels": {"gpu": "b200"}}, {"max_in_flight": 2}))
    fleet.occupy(0, 2)
    decision = fleet.pick()
    assert decision.chosen == fleet.endpoints[1]
    assert list(map(str, decision.filters))[-2:] == [
        "labels: 0 of 2 match, so it is skipped",
        "max_in_flight: 1 of 2 match",
    ]


def test_who_was_filtered_out_is_the_last_fallback() -> None:
    """Envoy's retry goes to those that passed before it goes to those that did not."""
    fleet = Fleet(3, _chain({"max_in_flight": 1}), fallbacks=2)
    fleet.occupy(1, 3)
    assert fleet.pick().endpoints[2] == fleet.endpoints[1]


def test_columns_are_those_of_the_strategy_behind_it() -> None:
    """What least-wait says of the candidates that passed stands in their places."""
    loads = [Load(9, 900, 7.0), Load(1, 100, 2.0), Load(0, 0, 0.0)]
    candidates, seen = endpoints(3), context(loads)
    ranking = _chain({"max_in_flight": 5}, then=LeastWait()).rank(request(prompt_tokens=4096), candidates, seen)
    alone = LeastWait().rank(request(prompt_tokens=4096), candidates[1:], seen.narrowed([1, 2]))
    for column in ("costs", "queues", "works", "prefills"):
        assert list(getattr(ranking, column))[1:] == list(getattr(alone, column))
        assert getattr(ranking, column)[0] >= max(getattr(alone, column))
    assert not ranking.memories


def test_a_favourite_keeps_its_place() -> None:
    """A session's endpoint that passed the filters wins; one that did not pass is no favourite any more."""
    seen = context([Load(9), Load(1), Load(0)])
    chain = _chain({"max_in_flight": 5}, then=SessionAffinity(then=LeastRequest()))
    for address, favourite in (("10.0.0.1:8000", 1), ("10.0.0.0:8000", None)):
        seen.knowledge.sessions.tie("acme/chat-8b\ns", address, 0.0)
        assert chain.rank(request(session="s"), endpoints(3), seen).favourite == favourite


def test_the_bound_of_a_nested_strategy_is_that_of_who_passed() -> None:
    """Consistent hashing behind a filter neither sees nor counts who was filtered out."""
    fleet = Fleet(4, _chain({"max_in_flight": 50}, then=PrefixAffinity()))
    fleet.occupy(3, 50)
    made = [fleet.pick(request(text(turn))) for turn in range(30)]
    assert fleet.endpoints[3] not in [decision.chosen for decision in made]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"max_in_flight": 1, "min_score": 0.5}, {"max_in_flight": 0}, {"max_kv_usage": 80}, {"gpu": "h100"}],
    ids=["none", "two", "zero", "percent", "unknown"],
)
def test_conditions_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Each filter is exactly one known condition with a value in its range."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"filters": [wrong]}, ChainParameters)


def test_who_was_filtered_out_is_told_from_who_is_dear() -> None:
    """Terms of those that are left add up; a cost that only puts somebody last is not explained as one."""
    inner = _chain({"labels": {"zone": "a"}}, then=LeastWait())
    fleet = Fleet(0, _chain({"labels": {"gpu": "h100"}}, then=inner))
    rows = [{"gpu": "h100", "zone": "a"}, {"gpu": "h100", "zone": "b"}, {"gpu": "l40s", "zone": "a"}]
    specs = [
        EndpointSpec(address=f"10.0.0.{place}:8000", models=CHAT, labels=labels)
        for place, labels in enumerate(rows, 11)
    ]
    change = fleet.registry.replace("p", specs)
    follow(change, ledger=fleet.ledger, index=fleet.index)
    left, *out = fleet.pick(request(prompt_tokens=1000)).terms
    parts = left.queue + left.prefill + left.interference + left.backlog + left.memory
    assert (left.filtered, left.in_seconds, parts) == (False, True, pytest.approx(left.cost))
    assert [(terms.filtered, terms.in_seconds) for terms in out] == [(True, False)] * 2
    assert costs(out[0]) == {"endpoint": "10.0.0.12:8000", "filtered": True, "hit_tokens": 0}


def test_the_strategy_inside_is_named() -> None:
    """However deep it is nested, an explanation can say who ranked."""
    inner = Chain(msgspec.convert({"then": {"name": "least-request"}}, ChainParameters), then=LeastRequest())
    outer = Chain(msgspec.convert({"then": {"name": "chain"}}, ChainParameters), then=inner)
    fleet = Fleet(2, outer)
    assert fleet.pick().inside == "chain, least-request"
    assert Fleet(2, SessionAffinity()).pick().inside == "least-wait"


def test_scores_are_those_of_the_strategy_behind_it() -> None:
    """They stand in the places of who passed, and nobody else has any that count."""
    seen = context([Load(9), Load(1), Load(0)])
    ranking = _chain({"max_in_flight": 5}, then=Weighted()).rank(request(), endpoints(3), seen)
    alone = Weighted().rank(request(), endpoints(3)[1:], seen.narrowed([1, 2]))
    assert {name: column[1:] for name, column in ranking.scores.items()} == alone.scores
    assert ranking.scores["in_flight"][0] == 0.0


def test_what_copies_save_is_those_of_who_passed() -> None:
    """What others bear of a popular prefix stands in the place of who has it; who was filtered out has none."""
    loads, hits = [Load(9), Load(), Load()], [0, 5800, 0]
    candidates, seen = endpoints(3), context(loads, hits, siblings=16, lasting=16)
    ranking = _chain({"max_in_flight": 5}, then=LeastWait()).rank(request(prompt_tokens=6000), candidates, seen)
    alone = LeastWait().rank(request(prompt_tokens=6000), candidates[1:], seen.narrowed([1, 2]))
    assert min(alone.copying) < 0
    assert list(ranking.copying) == [0.0, *alone.copying]
