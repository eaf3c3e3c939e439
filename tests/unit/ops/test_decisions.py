"""The ring of decisions."""

import json
from collections.abc import Callable

import msgspec

from ext_proc.core.errors import NoReadyEndpoint
from ext_proc.core.model import CostTerms, Decision, FilterReport, Outcome
from ext_proc.ops.decisions import DecisionRing, explain

OutcomeOf = Callable[..., Outcome]


def _numbered(decision: Decision, number: int) -> Decision:
    return msgspec.structs.replace(decision, id=f"d-{number}")


def test_a_decision_is_explained_in_milliseconds(decision: Decision) -> None:
    """Every candidate is listed with every term, the cheapest first."""
    first, second = explain(decision, None)["candidates"]
    assert first == {
        "endpoint": "10.0.0.11:8000", "cost_ms": 62.5, "queue_ms": 20.0, "prefill_ms": 30.0,
        "memory_ms": 12.5, "hit_tokens": 512, "in_flight": 3,
    }  # fmt: skip
    assert second["endpoint"] == "[fd00::12]:8000"


def test_prediction_and_truth_stand_side_by_side(decision: Decision, outcome_of: OutcomeOf) -> None:
    """The explanation shows what was expected and what the engine reported."""
    told = explain(decision, outcome_of())
    assert told["predicted_cached_tokens"] == 512
    assert told["outcome"]["cached_tokens"] == 480
    assert (told["outcome"]["duration_ms"], told["outcome"]["first_byte_ms"]) == (1500.0, 250.0)


def test_a_decision_says_why(decision: Decision) -> None:
    """Reason, strategy, filters and fallbacks are part of the explanation."""
    told = explain(decision, None)
    assert (told["strategy"], told["reason"], told["fallbacks"]) == ("least-wait", "prefix", ["[fd00::12]:8000"])
    assert told["filters"] == ["model: 2 of 4 match"]
    assert told["outcome"] is None


def test_an_explanation_is_json_whatever_it_holds(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Endless costs and names that are not Unicode do not break the page."""
    request = msgspec.structs.replace(decision.request, model="\ud800")
    terms = (CostTerms(decision.chosen, float("inf")),)
    odd = msgspec.structs.replace(decision, request=request, terms=terms)
    page = msgspec.json.encode(explain(odd, outcome_of(request_id="\udfff", details="\ud800")))
    assert json.loads(page)["candidates"][0]["cost_ms"] is None


def test_no_explanation_shows_a_prompt(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Prompts, sessions and salts are never shown."""
    ring = DecisionRing()
    ring.decided(decision, 0.001)
    ring.finished(decision, outcome_of())
    ring.refused(decision.request, NoReadyEndpoint("SECRET"), ())
    assert "SECRET" not in json.dumps([ring.explanations(), ring.refusals()])


def test_the_ring_keeps_the_latest(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Beyond its capacity the oldest decisions go, outcomes with them, and the latest come first."""
    ring = DecisionRing(capacity=3)
    for number in range(10):
        ring.decided(_numbered(decision, number), 0.001)
        ring.finished(_numbered(decision, number), outcome_of())
    assert [told["decision_id"] for told in ring.explanations()] == ["d-9", "d-8", "d-7"]
    assert (len(ring), len(ring._outcomes)) == (3, 3)


def test_a_late_outcome_of_a_forgotten_decision_is_dropped(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Outcomes without a decision do not pile up."""
    ring = DecisionRing(capacity=1)
    ring.finished(decision, outcome_of())
    assert ring._outcomes == {}


def test_a_decision_is_found_by_either_id(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Envoy's request id and the decision's own id lead to the same explanation."""
    ring = DecisionRing()
    for number in range(3):
        ring.decided(_numbered(decision, number), 0.001)
        ring.finished(_numbered(decision, number), outcome_of(request_id=f"r-{number}"))
    (by_request,) = ring.explanations(request_id="r-1")
    (by_decision,) = ring.explanations(request_id="d-1")
    assert by_request == by_decision
    assert ring.explanations(request_id="r-9") == []


def test_a_limit_cuts_the_list(decision: Decision) -> None:
    """Only as many explanations are made as are asked for."""
    ring = DecisionRing()
    for number in range(5):
        ring.decided(_numbered(decision, number), 0.001)
    assert len(ring.explanations(limit=2)) == 2


def test_refusals_are_remembered_with_their_filters(decision: Decision) -> None:
    """Why a request got no endpoint can be read afterwards, the latest first, in bounded memory."""
    ring = DecisionRing(capacity=2)
    for number in range(5):
        ring.refused(decision.request, NoReadyEndpoint("x"), (FilterReport("ready", number, 0),))
    assert [told["filters"] for told in ring.refusals()] == [["ready: 0 of 4 match"], ["ready: 0 of 3 match"]]
    assert ring.refusals()[0]["reason"] == "no_ready_endpoint"
