"""Dry runs: the same answer as the real thing, and no trace."""

from __future__ import annotations

import json
import pickle
import random
import threading
from typing import Any

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Decision, Ending
from ext_proc.core.picker import Rejection
from ext_proc.core.rates import RateSource
from ext_proc.core.rehearsal import Asked, Rehearsal, rehearse
from ext_proc.core.strategies import Context, Ranking, Strategy
from ext_proc.core.strategies.chain import Chain, ChainParameters
from ext_proc.core.strategies.conditions import Condition
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.round_robin import RoundRobin
from ext_proc.plugins import load_strategy, strategy_names
from tests.unit.core.builders import MODEL, Fleet, request, text

PATH = "/v1/chat/completions"


def asked(content: str = "Tell me of rivers. " * 100, **fields: Any) -> Asked:
    """Make a chat request."""
    headers = {"x-session-id": "s-1"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields
    return Asked(PATH, json.dumps(body).encode(), headers)


def run(fleet: Fleet, what: Asked | None = None, seed: int = 1, **options: Any) -> Rehearsal:
    """Rehearse with a generator of one's own."""
    generator = random.Random(seed)
    return rehearse(fleet.picker, what or asked(), fleet.now, generator, inspect_bytes=1 << 20, **options)


def trace(fleet: Fleet) -> bytes:
    """Write down everything that a decision may alter, but for what only saves time."""
    picker = fleet.picker
    picker.knowledge.reputations.latencies(())  # whoever asks has it learn what waits for it
    return pickle.dumps(
        [
            vars(fleet.ledger) | {"_rows": None},
            vars(fleet.index) | {"_usual": None},
            vars(fleet.health),
            vars(fleet.rates),
            vars(fleet.expectations),
            fleet.generator.getstate(),
            picker._turn,
            picker.strategies,
            picker.knowledge,
            vars(picker.sessions),
            vars(picker.responses),
            fleet.notes.failures,
        ]
    )


@pytest.mark.parametrize("name", strategy_names())
def test_a_rehearsal_leaves_no_trace(name: str) -> None:
    """Ledger, index, health, turns, sessions and the serving generator are as before, whatever the strategy."""
    fleet = Fleet(4, load_strategy(name, {}))
    for number in range(6):
        fleet.serve(request(text(number % 2), session="s-1"))
    fleet.settle(fleet.pick(), Ending.CONNECT_FAILURE)
    fleet.rates.assume(fleet.endpoints[0].slot, 3000.0, RateSource.SCRAPE)
    fleet.now += 1  # a serving decision would look at the rates anew
    before = trace(fleet)
    for seed in range(5):
        run(fleet, seed=seed)
        run(fleet, asked(previous_response_id="r-1", model="unknown"))
    assert trace(fleet) == before
    fleet.pick(request(session="s-1"))
    assert trace(fleet) != before


def test_a_rehearsal_uses_no_session_and_no_response() -> None:
    """Looking a name up makes it young; a rehearsal must not keep names of others from being forgotten."""
    fleet = Fleet(2, LeastRequest())
    first, second = (endpoint.address for endpoint in fleet.endpoints)
    for name, address in (("s-1", first), ("s-2", second)):
        fleet.picker.sessions.tie(f"{MODEL}\n{name}", address, fleet.now)
        fleet.picker.responses.tie(name, address, fleet.now)
    before = trace(fleet)
    made = run(fleet).made
    assert isinstance(made, Decision)
    assert (made.chosen.address, made.reason) == (first, "session")
    body = {"model": MODEL, "input": "Go on.", "previous_response_id": "s-1"}
    made = run(fleet, Asked("/v1/responses", json.dumps(body).encode())).made
    assert isinstance(made, Decision)
    assert made.reason == "previous_response"
    assert trace(fleet) == before


@pytest.mark.parametrize("strategy", [LeastWait, LeastRequest, RoundRobin])
def test_a_rehearsal_foretells_the_pick(strategy: type[Strategy]) -> None:
    """With equal generators the decision that follows is the one that was foretold, with the same terms."""
    fleet = Fleet(4, strategy())
    for number in range(9):
        foretold = run(fleet, seed=number)
        assert isinstance(foretold.made, Decision)
        assert foretold.request is not None
        fleet.generator = random.Random(number)
        made = fleet.pick(request(prompt_tokens=foretold.request.prompt_tokens, session="s-1"))
        assert made.chosen == foretold.made.chosen
        assert [terms.cost for terms in made.terms] == [terms.cost for terms in foretold.made.terms]
        fleet.now += 0.01


def test_a_rehearsal_sees_what_is_cached() -> None:
    """A prompt that was served before is found where it was served."""
    fleet = Fleet(3)
    what = asked()
    first = run(fleet, what)
    assert isinstance(first.made, Decision)
    assert first.made.hit_tokens == 0
    served = fleet.picker.pick(_parsed(what), fleet.now, fleet.generator)
    assert isinstance(served, Decision)
    fleet.now += 5
    fleet.settle(served)
    then = run(fleet, what)
    assert isinstance(then.made, Decision)
    assert (then.made.chosen, then.made.hit_tokens > 300) == (served.chosen, True)


def test_no_prompt_comes_out() -> None:
    """What is returned holds no prompt."""
    made = run(Fleet(2), asked("SECRET " * 200))
    assert made.request is not None
    assert (made.request.prompt, made.request.prompt_tokens > 100) == (b"", True)
    assert b"SECRET" not in pickle.dumps([made.request, made.made.request if isinstance(made.made, Decision) else None])


def test_removed_endpoints_are_named_with_their_filter() -> None:
    """Endpoints of other models, outside the subset and ejected ones are told apart."""
    fleet = Fleet(3)
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    fleet.settle(fleet.pick(subset={"10.0.0.12:8000"}), Ending.CONNECT_FAILURE)
    made = run(fleet, subset={"10.0.0.11:8000", "10.0.0.12:8000"})
    assert [(removal.filter, [endpoint.address for endpoint in removal.endpoints]) for removal in made.removals] == [
        ("model", ["10.0.1.1:8000"]),
        ("subset", ["10.0.0.13:8000"]),
        ("health", ["10.0.0.12:8000"]),
    ]


def test_a_filter_that_is_skipped_removed_nobody() -> None:
    """A strategy's filter that nobody meets is not obeyed, so it took nothing away."""
    nobody = ChainParameters(filters=(Condition(labels={"gpu": "none"}),))
    made = run(Fleet(2, Chain(nobody)))
    assert isinstance(made.made, Decision)
    assert str(made.made.filters[-1]) == "labels: 0 of 2 match, so it is skipped"
    assert made.removals == ()


def test_a_rejection_is_foretold() -> None:
    """An unknown model is refused in a rehearsal as in earnest, and every endpoint was removed."""
    made = run(Fleet(2), asked(model="unknown"))
    assert isinstance(made.made, Rejection)
    assert made.made.refusal.reason == "model_not_found"
    assert len(made.removals[0].endpoints) == 2


def test_an_unknown_path_is_left_to_envoy() -> None:
    """Nothing is understood of a path that kvpicker does not know."""
    assert run(Fleet(2), Asked("/metrics", b"{}")) == Rehearsal(None)


def test_a_request_without_a_body_is_placed_by_its_head() -> None:
    """A look-up has no prompt and costs nothing."""
    made = run(Fleet(2), Asked("/v1/models", method="GET"))
    assert isinstance(made.made, Decision)
    assert made.made.chain_length == 0


def test_a_strategy_that_fails_is_named_and_not_counted() -> None:
    """The explanation says that least-request stood in; the error is not reported as one of serving."""

    class Broken:
        def rank(self, request: Any, candidates: Any, context: Context) -> Ranking:
            raise ValueError("SECRET")

    fleet = Fleet(2, Broken())
    made = run(fleet)
    assert made.failures == ("tried failed (ValueError) and was replaced by least-request",)
    assert fleet.notes.failures == []
    assert isinstance(made.made, Decision)
    assert (made.made.strategy, made.made.replaced) == ("least-request", "tried")


def test_what_is_wrong_with_a_ranking_is_told() -> None:
    """Words of our own quote nothing, so the explanation repeats them."""

    class Short:
        def rank(self, request: Any, candidates: Any, context: Context) -> Ranking:
            return Ranking([1.0])

    (line,) = run(Fleet(2, Short())).failures
    assert line == (
        "tried failed (a strategy must give one number for each of 2 candidates) and was replaced by least-request"
    )


def test_a_strategy_that_cannot_be_copied_is_named() -> None:
    """Rather than let a dry run leave a trace, it is refused."""

    class Locked(LeastRequest):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"cannot be copied for a dry run: .*lock.*; give it __deepcopy__"):
        run(Fleet(2, Locked()))


def _parsed(what: Asked) -> Any:
    from ext_proc.core.prompts import RequestHead, classify, parse  # noqa: PLC0415

    route = classify("POST", what.path)
    assert route is not None
    return parse(route, RequestHead(what.path), what.body, complete=True)
