"""Explanations: terms that add up, and a header line that fits."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.errors import ModelNotFound
from ext_proc.core.explanation import LONGEST_HEADER, costs, header
from ext_proc.core.model import Endpoint, FilterReport, InferenceRequest
from ext_proc.core.picker import Rejection
from ext_proc.core.strategies import Context, Ranking
from ext_proc.core.strategies.least_request import LeastRequest
from tests.unit.core.builders import CHAT, Fleet, request, text


class Stubborn:
    """Has the dearest candidate win, for a reason that is text of its own kind, as numpy's is."""

    reason = type("Reason", (str,), {})("mine")

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Cost each its position."""
        last = len(candidates) - 1
        return Ranking([float(place) for place in range(len(candidates))], favourite=last, reason=self.reason)


SITUATIONS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60_000), st.floats(0, 120), st.booleans()), min_size=1, max_size=12
)


@given(SITUATIONS, st.integers(0, 120_000))
def test_the_terms_of_least_wait_add_up(situations: list[tuple[int, int, float, bool]], length: int) -> None:
    """The terms sum up to the cost, at any load, prompt and KV capacity."""
    fleet = Fleet(len(situations), kv_tokens=50_000)
    prompt = text("shared", min(length * 4, 40_000))
    for place, (in_flight, tokens, busy, warm) in enumerate(situations):
        load = fleet.load(place)
        load.in_flight, load.tokens, load.busy_until = in_flight, tokens, fleet.now + busy
        if warm:
            fleet.index.learn(fleet.endpoints[place].slot, fleet.hasher.chain(request(prompt)))
    for terms in fleet.pick(request(prompt, prompt_tokens=length)).terms:
        assert terms.in_seconds
        total = terms.queue + terms.prefill + terms.interference + terms.backlog + terms.memory + terms.copying
        assert total == pytest.approx(terms.cost, rel=1e-9)


def test_interference_and_backlog_are_told_apart() -> None:
    """Requests in flight add to their own endpoint only; a backlog everywhere adds to all."""
    fleet = Fleet(2)
    fleet.load(0).in_flight = 100
    for place in range(2):
        fleet.load(place).busy_until = fleet.now + 1.5
    busy, idle = fleet.pick(request(prompt_tokens=1000)).terms
    assert (busy.interference / busy.prefill, idle.interference) == (pytest.approx(0.03 * 64), 0.0)
    assert (busy.backlog / busy.prefill, idle.backlog / idle.prefill) == (pytest.approx(1.5), pytest.approx(1.5))


def test_milliseconds_add_up_on_paper() -> None:
    """What is printed sums up too, but for rounding."""
    fleet = Fleet(3)
    fleet.occupy(0, 5, tokens=3000)
    for terms in fleet.pick(request(prompt_tokens=700)).terms:
        row = costs(terms)
        parts = [row[f"{name}_ms"] for name in ("queue", "prefill", "interference", "backlog", "memory", "copying")]
        assert sum(parts) == pytest.approx(row["cost_ms"], abs=0.003)


def test_other_strategies_show_their_cost_as_it_is() -> None:
    """A strategy that counts requests gives no milliseconds."""
    fleet = Fleet(2, LeastRequest())
    fleet.occupy(0, 3)
    first, _ = fleet.pick().terms
    assert costs(first) == {"endpoint": "10.0.0.11:8000", "cost": 3.0, "hit_tokens": 0}


@pytest.mark.parametrize("count", [1, 3, 300])
def test_the_header_fits_and_is_json(count: int) -> None:
    """However large the fleet, the line is printable ASCII within its bound, the cheapest candidates first."""
    fleet = Fleet()
    fleet.fill("p", *[f"[2001:db8::{number:x}]:65535" for number in range(1, count + 1)], models=frozenset({"m"}))
    for place in range(count):
        fleet.load(place).busy_until = fleet.now + random.Random(place).random() * 1e5
    line = header(fleet.pick(request(text(1), model="m", session="SECRET", namespace=("SECRET",), request_id="SECRET")))
    assert len(line.encode("ascii")) <= LONGEST_HEADER
    assert line.isprintable()
    told = json.loads(line)
    shown = [row["cost_ms"] for row in told["candidates"]]
    assert (shown, len(shown) + told.get("left_out", 0)) == (sorted(shown), count)
    assert len(shown) >= min(count, 12)
    assert "SECRET" not in line


def test_the_header_always_holds_the_chosen_one_and_its_fallbacks() -> None:
    """A choice that is not the cheapest, of many candidates, is in the line, first, and its fallbacks follow it."""
    fleet = Fleet(0, Stubborn(), fallbacks=4)
    fleet.fill("p", *[f"[2001:db8::{number:x}]:65535" for number in range(1, 301)], models=CHAT)
    decision = fleet.pick()
    told = json.loads(header(decision))
    first = [row["endpoint"] for row in told["candidates"][:5]]
    assert first == [told["endpoint"], *told["fallbacks"]] == [endpoint.address for endpoint in decision.endpoints]
    assert told["candidates"][0]["cost"] == 299.0
    rest = [row["cost"] for row in told["candidates"][5:]]
    assert rest == sorted(rest)
    assert rest


def test_the_header_names_a_strategy_that_failed_and_one_inside() -> None:
    """Whoever ranked in another's place is told from who should have."""
    decision = msgspec.structs.replace(Fleet(1).pick(), replaced="mine", inside="least-wait")
    told = json.loads(header(decision))
    assert (told["replaced"], told["inside"]) == ("mine", "least-wait")


def test_the_header_counts_no_requests_of_others() -> None:
    """How many requests are in flight is not for clients."""
    fleet = Fleet(2)
    fleet.occupy(0, 3)
    assert "in_flight" not in header(fleet.pick())


def test_a_hostile_reason_cannot_break_a_header() -> None:
    """Line ends and what is not ASCII never come out."""
    decision = msgspec.structs.replace(Fleet(1).pick(), reason="a\r\nset-cookie: x\x7f\u2028é")
    assert header(decision).isascii()
    assert header(decision).isprintable()


def test_a_rejection_fits_a_header_too() -> None:
    """Reason, status and filters, but not the text that repeats the client's model."""
    rejection = Rejection(ModelNotFound("no SECRET here"), (FilterReport("model", 4, 0),))
    assert json.loads(header(rejection)) == {
        "refused": "model_not_found",
        "status": 404,
        "filters": ["model: 0 of 4 match"],
    }
