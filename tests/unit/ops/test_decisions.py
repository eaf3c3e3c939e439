"""The ring of decisions."""

import json
from collections.abc import Callable

import msgspec

from ext_proc.core.errors import NoReadyEndpoint
from ext_proc.core.model import Decision, FilterReport, Outcome
from ext_proc.ops.decisions import DecisionRing

OutcomeOf = Callable[..., Outcome]


def _numbered(decision: Decision, number: int) -> Decision:
    return msgspec.structs.replace(decision, id=f"d-{number}")


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


def test_the_usual_pace_is_asked_for_when_explaining(decision: Decision, outcome_of: OutcomeOf) -> None:
    """What is learnt after a decision still helps to explain it."""
    paces = [None, 0.01]
    ring = DecisionRing(pace=lambda _, address: paces.pop(0) if address == decision.chosen.address else None)
    ring.decided(decision, 0.001)
    ring.finished(decision, outcome_of())
    bases = [ring.explanations()[0]["comparison"]["first_token_ms"]["basis"] for _ in range(2)]
    assert bases == [None, "estimate"]


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
