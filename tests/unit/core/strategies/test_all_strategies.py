"""What holds for every strategy, whatever it looks at."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.config.reference import attributes
from ext_proc.core.knowledge import Knowledge
from ext_proc.core.load import Load
from ext_proc.core.model import Ending, Endpoint
from ext_proc.core.strategies import COLUMNS, Context, Strategy
from ext_proc.core.terms import Terms
from ext_proc.plugins import load_strategy
from tests.unit.core.builders import Fleet, context, request, text
from tests.unit.core.strategies.test_weighted import View, Views

EVERY: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "least-wait",
        "least-request",
        "least-tokens",
        "random",
        "round-robin",
        "prefix-affinity",
        "session-affinity",
        "reputation",
        "weighted",
        "chain",
    )
} | {
    "weighted-all": (
        "weighted",
        {"scorers": dict.fromkeys(("prefix", "queue", "kv_usage", "running", "in_flight", "tokens", "latency"), 1.5)},
    ),
    "filters-before-least-wait": ("chain", {"filters": [{"max_in_flight": 20}]}),
    "chain-of-filters": (
        "chain",
        {
            "filters": [{"max_in_flight": 20}, {"max_kv_usage": 0.9}, {"labels": {"gpu": "h100"}}, {"min_score": 0.5}],
            "then": {"name": "session-affinity", "parameters": {"then": {"name": "prefix-affinity"}}},
        },
    ),
}
STATELESS = sorted(EVERY.keys() - {"random", "round-robin"})

SOME = st.one_of(st.none(), st.floats(0, 1e9))


class Situation(msgspec.Struct):
    """One endpoint and all that strategies may know of it."""

    load: Load
    hit: int
    view: View | None
    kv_tokens: int | None
    rate: float
    labels: dict[str, str]
    past: list[tuple[Ending, float, int | None]]


SITUATIONS = st.lists(
    st.builds(
        Situation,
        load=st.builds(Load, st.integers(0, 10**6), st.integers(0, 10**12), st.floats(0, 1e9)),
        hit=st.integers(0, 200_000),
        view=st.one_of(st.none(), st.builds(View, SOME, SOME, st.one_of(st.none(), st.floats(0, 1)))),
        kv_tokens=st.one_of(st.none(), st.integers(1, 10**10)),
        rate=st.one_of(st.just(0.0), st.floats(1, 1e8)),
        labels=st.sampled_from([{}, {"gpu": "h100"}, {"gpu": "l40s"}]),
        past=st.lists(
            st.tuples(st.sampled_from(Ending), st.floats(0, 1e5), st.one_of(st.none(), st.integers(0, 10**7))),
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=7,
)


def _made(name: str) -> Strategy:
    return load_strategy(*EVERY[name])


def _candidates(situations: Sequence[Situation]) -> list[Endpoint]:
    return [
        Endpoint(
            address=f"10.0.0.{slot}:80",
            pool="p",
            slot=slot,
            kv_tokens=each.kv_tokens,
            labels=each.labels,
        )
        for slot, each in enumerate(situations)
    ]


def _seen(situations: Sequence[Situation], order: Sequence[int], session: bool) -> Context:
    """Make the context of the candidates in that order; knowledge goes by slot and does not depend on it."""
    knowledge = Knowledge(engines=Views(*[each.view for each in situations]), tokens=lambda blocks: 64 * blocks)
    for endpoint, each in zip(_candidates(situations), situations, strict=True):
        for ending, seconds, tokens in each.past:
            knowledge.reputations.note(endpoint, ending, 0.0, seconds=seconds, tokens=tokens)
    if session:
        knowledge.sessions.tie("acme/chat-8b\ns", "10.0.0.0:80", 0.0)
    there = [situations[place] for place in order]
    rates = [each.rate for each in there] if any(each.rate for each in there) else []
    loads, hits = [each.load for each in there], [each.hit for each in there]
    return context(loads, hits, rates=rates, chain=[11, 22, 33, 44, 55], knowledge=knowledge)


@pytest.mark.parametrize("name", sorted(EVERY))
@given(situations=SITUATIONS, length=st.integers(0, 2_000_000), session=st.booleans())
@settings(max_examples=40)
def test_costs_are_finite_for_any_fleet(name: str, situations: list[Situation], length: int, session: bool) -> None:
    """One finite cost per candidate, and prefill times that the ledger can book."""
    asked = request(prompt_tokens=length, session="s" if session else "")
    seen = _seen(situations, range(len(situations)), session)
    ranking = _made(name).rank(asked, _candidates(situations), seen)
    assert len(ranking.costs) == len(situations)
    assert all(map(isfinite, [*ranking.costs, *ranking.queues, *ranking.prefills, *ranking.memories]))
    assert all(seconds >= 0 for seconds in ranking.prefills)


@pytest.mark.parametrize("name", STATELESS)
@given(situations=SITUATIONS, length=st.integers(0, 2_000_000), session=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_the_order_of_candidates_changes_nothing(
    name: str, situations: list[Situation], length: int, session: bool, seed: int
) -> None:
    """Each candidate costs the same wherever it stands in the row."""
    asked = request(prompt_tokens=length, session="s" if session else "")
    order = list(range(len(situations)))
    random.Random(seed).shuffle(order)
    plain = _candidates(situations)
    expected = _made(name).rank(asked, plain, _seen(situations, range(len(order)), session))
    shuffled = _made(name).rank(asked, [plain[place] for place in order], _seen(situations, order, session))
    assert shuffled.costs == pytest.approx([expected.costs[place] for place in order])
    assert expected.favourite == (None if shuffled.favourite is None else order[shuffled.favourite])


@pytest.mark.parametrize("name", sorted(EVERY))
def test_equal_seeds_give_equal_decisions(name: str) -> None:
    """Two fleets that see the same requests and outcomes make the same picks."""

    def history() -> list[list[str]]:
        fleet, dice, made = Fleet(5, _made(name)), random.Random(3), []
        for turn in range(60):
            asked = request(text(dice.randrange(6)) + text(turn), session=str(dice.randrange(4)))
            made.append(fleet.pick(asked))
            if dice.random() < 0.5:
                fleet.settle(made[dice.randrange(len(made))], dice.choice([Ending.OK, Ending.RESET]), duration=1.0)
            fleet.now += dice.random()
        assert not fleet.notes.failures
        return [[endpoint.address for endpoint in decision.endpoints] for decision in made]

    assert history() == history()


@pytest.mark.parametrize("name", sorted(EVERY))
def test_no_strategy_leaves_anybody_idle_for_ever(name: str) -> None:
    """Requests that share nothing reach every endpoint."""
    fleet = Fleet(4, _made(name))
    chosen = {fleet.pick(request(text(turn))).chosen.slot for turn in range(60)}
    assert chosen == {0, 1, 2, 3}


def test_narrowing_keeps_columns_in_step() -> None:
    """Every field that holds one value per candidate is narrowed with the candidates, and no other."""
    listed = {name for name, meaning in attributes(Context).items() if "one per candidate" in meaning}
    assert set(COLUMNS) == listed
    seen = context([Load(1), Load(2), Load(3)], [10, 20, 30], chain=[1, 2, 3], rates=[1.0, 2.0, 3.0])
    narrow = seen.narrowed([2, 0])
    assert [load.in_flight for load in narrow.loads] == [3, 1]
    assert (narrow.hits, narrow.rates) == ([30, 10], [3.0, 1.0])
    assert context([Load(1), Load(2)]).narrowed([1]).rates == ()
    assert (narrow.chain, narrow.knowledge) == (seen.chain, seen.knowledge)


@pytest.mark.parametrize("name", sorted(EVERY))
@given(situations=SITUATIONS, session=st.booleans())
@settings(max_examples=30)
def test_costs_said_to_be_in_seconds_are_the_sum_of_their_terms(
    name: str, situations: list[Situation], session: bool
) -> None:
    """Whichever strategy stands around another, an explanation adds up."""
    seen, candidates = _seen(situations, range(len(situations)), session), _candidates(situations)
    ranking = _made(name).rank(request(prompt_tokens=4096, session="s" if session else ""), candidates, seen)
    for terms in Terms(candidates, ranking, seen.hits, [load.in_flight for load in seen.loads]):
        whole = terms.queue + terms.prefill + terms.backlog + terms.interference + terms.memory + terms.copying
        assert not terms.in_seconds or terms.cost == pytest.approx(whole)
