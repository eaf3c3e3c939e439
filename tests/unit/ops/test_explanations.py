"""Explanations of decisions, outcomes and dry runs."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ext_proc.core.errors import Asleep, ModelNotFound, Saturated
from ext_proc.core.model import CostTerms, Decision, Ending, FilterReport, Operation, Outcome, Usage
from ext_proc.core.picker import Rejection
from ext_proc.core.rehearsal import Rehearsal, Removal
from ext_proc.ops.explanations import explain, explain_rehearsal

OutcomeOf = Callable[..., Outcome]


def test_a_decision_is_explained_in_milliseconds(decision: Decision) -> None:
    """Every candidate is listed with every term, the cheapest first."""
    first, second = explain(decision, None)["candidates"]
    assert first == {
        "endpoint": "10.0.0.11:8000", "cost_ms": 72.5, "queue_ms": 20.0, "prefill_ms": 30.0, "interference_ms": 6.0,
        "backlog_ms": 4.0, "memory_ms": 12.5, "copying_ms": 0.0, "hit_tokens": 512, "in_flight": 3,
    }  # fmt: skip
    assert second["endpoint"] == "[fd00::12]:8000"


def test_prediction_and_truth_stand_side_by_side(decision: Decision, outcome_of: OutcomeOf) -> None:
    """The explanation shows what was expected and what the engine reported."""
    told = explain(decision, outcome_of())
    assert told["predicted_cached_tokens"] == 512
    assert told["predicted_by"] == told["comparison"]["predicted_by"] == "text"
    assert told["outcome"]["cached_tokens"] == 480
    assert (told["outcome"]["duration_ms"], told["outcome"]["first_byte_ms"]) == (1500.0, 250.0)
    assert explain(decision, outcome_of(first_token=0.75))["outcome"]["first_token_ms"] == 750.0


def test_it_is_told_by_what_cached_tokens_were_predicted(decision: Decision, outcome_of: OutcomeOf) -> None:
    """The endpoint that served counts, which may be one without reports."""
    told = explain(msgspec.structs.replace(decision, exact=(True, False)), outcome_of(served="[fd00::12]:8000"))
    assert (told["predicted_by"], told["comparison"]["predicted_by"]) == ("token", "text")


def test_a_decision_says_why(decision: Decision) -> None:
    """Reason, strategy, filters and fallbacks are part of the explanation."""
    told = explain(decision, None)
    assert (told["strategy"], told["reason"], told["fallbacks"]) == ("least-wait", "prefix", ["[fd00::12]:8000"])
    assert told["filters"] == ["model: 2 of 4 match"]
    assert told["outcome"] is None


def test_an_explanation_is_json_whatever_it_holds(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Endless costs and names that are not Unicode do not break the page."""
    request = msgspec.structs.replace(decision.request, model="\ud800")
    terms = (CostTerms(decision.chosen, float("inf"), in_seconds=True),)
    odd = msgspec.structs.replace(decision, request=request, terms=terms)
    page = msgspec.json.encode(explain(odd, outcome_of(request_id="\udfff", details="\ud800")))
    assert json.loads(page)["candidates"][0]["cost_ms"] is None


def test_a_cost_that_is_no_time_is_shown_as_it_is(decision: Decision) -> None:
    """A strategy that counts requests has no milliseconds to show."""
    counted = msgspec.structs.replace(decision, terms=(CostTerms(decision.chosen, 7.0, 512, in_flight=7),))
    assert explain(counted, None)["candidates"] == [
        {"endpoint": "10.0.0.11:8000", "cost": 7.0, "hit_tokens": 512, "in_flight": 7}
    ]


def test_cached_tokens_are_compared(decision: Decision, outcome_of: OutcomeOf) -> None:
    """The error is the prediction less the truth, for the endpoint that served."""
    chosen = explain(decision, outcome_of())["comparison"]
    assert chosen["cached_tokens"] == {"predicted": 512, "true": 480, "error": 32}
    fallback = explain(decision, outcome_of(served="[fd00::12]:8000"))["comparison"]
    assert (fallback["endpoint"], fallback["cached_tokens"]["predicted"]) == ("[fd00::12]:8000", 64)
    assert explain(decision, outcome_of(usage=Usage()))["comparison"]["cached_tokens"]["error"] is None
    assert explain(decision, outcome_of(served="10.9.9.9:1"))["comparison"] is None
    assert explain(decision, None)["comparison"] is None


@pytest.mark.parametrize(
    ("changes", "pace", "expected"),
    [
        ({"first_token": 0.1}, 0.01, (100.0, "first_token")),
        ({"usage": Usage(completion_tokens=1)}, None, (1500.0, "duration")),
        ({}, 1.0, (None, None)),
        ({}, None, (None, None)),
        ({"usage": Usage()}, 0.01, (None, None)),
        ({"ending": Ending.CUT}, 0.01, (None, None)),
    ],
    ids=["seen", "one-token", "nothing-left", "no-pace", "no-usage", "cut"],
)
def test_the_best_known_time_to_first_token_counts(
    decision: Decision,
    outcome_of: OutcomeOf,
    changes: dict[str, Any],
    pace: float | None,
    expected: tuple[float | None, str | None],
) -> None:
    """The signal itself, else the end of an answer of one token, else the duration less what generating takes."""
    told = explain(decision, outcome_of(**changes), lambda *_: pace)["comparison"]["first_token_ms"]
    assert (told["true"], told["basis"]) == expected
    assert (told["predicted"], told["error"]) == (62.5, None if expected[0] is None else 62.5 - expected[0])


def test_an_estimate_is_not_called_true(decision: Decision, outcome_of: OutcomeOf) -> None:
    """The duration less what generating takes is told apart from what was seen, and no error is reckoned from it."""
    told = explain(decision, outcome_of(), lambda *_: 0.01)["comparison"]["first_token_ms"]
    assert told == {"predicted": 62.5, "true": None, "error": None, "estimated": 810.0, "basis": "estimate"}


def test_a_replaced_strategy_and_one_inside_are_named(decision: Decision) -> None:
    """The page of past decisions shows who failed, and who ranked in another one's place; else neither key is there."""
    changed = msgspec.structs.replace(decision, replaced="mine", inside="weighted")
    told = explain(changed, None)
    assert (told["replaced"], told["inside"]) == ("mine", "weighted")
    assert not {"replaced", "inside"} & explain(decision, None).keys()


def test_scores_are_shown_for_each_candidate(decision: Decision) -> None:
    """What a weighted cost is made of stands beside it."""
    terms = (CostTerms(decision.chosen, 0.5, scores={"prefix": 0.25, "queue": 1 / 3}),)
    (row,) = explain(msgspec.structs.replace(decision, terms=terms), None)["candidates"]
    assert row["scores"] == {"prefix": 0.25, "queue": 0.3333}


def test_what_generates_nothing_ends_with_its_first_token(decision: Decision, outcome_of: OutcomeOf) -> None:
    """An embedding's duration is its time to the answer, whatever it reports of tokens."""
    request = msgspec.structs.replace(decision.request, operation=Operation.EMBEDDING)
    embedding = msgspec.structs.replace(decision, request=request)
    told = explain(embedding, outcome_of(usage=Usage()))["comparison"]["first_token_ms"]
    assert (told["true"], told["basis"]) == (1500.0, "duration")


def test_a_rehearsed_pick_names_what_was_removed(decision: Decision) -> None:
    """The table comes with the endpoints that filters took away and why; there is no id to look up."""
    (gone,) = decision.endpoints[1:]
    told = explain_rehearsal(Rehearsal(decision, decision.request, (Removal("health", (gone,)),), ("mine failed",)))
    assert (told["verdict"], told["endpoint"], told["notes"]) == ("picked", "10.0.0.11:8000", ["mine failed"])
    why = "ejected after failures, warming up, or starting slowly"
    assert told["removed"] == [{"filter": "health", "why": why, "endpoints": ["[fd00::12]:8000"]}]
    assert "decision_id" not in told
    assert "SECRET" not in json.dumps(told)


def test_a_rehearsed_refusal_says_what_the_client_would_get(decision: Decision) -> None:
    """Status, reason, message and filters of a rejection are told."""
    rejection = Rejection(ModelNotFound("no such model"), (FilterReport("model", 4, 0),))
    told = explain_rehearsal(Rehearsal(rejection, decision.request))
    assert (told["verdict"], told["status"], told["reason"], told["message"]) == (
        "refused", 404, "model_not_found", "no such model",
    )  # fmt: skip
    assert told["filters"] == ["model: 0 of 4 match"]


def test_a_tie_is_said_to_be_one(decision: Decision) -> None:
    """Nobody shall believe that an arbitrary choice is more than that."""
    tied = msgspec.structs.replace(decision, reason="tie")
    (note,) = explain_rehearsal(Rehearsal(tied, tied.request))["notes"]
    assert "another of them" in note


def test_an_unknown_path_would_pass() -> None:
    """What kvpicker does not know is left to Envoy."""
    assert explain_rehearsal(Rehearsal(None))["verdict"] == "passed"


def test_a_rehearsed_request_that_finds_all_busy_is_told_that_real_ones_wait(decision: Decision) -> None:
    """A dry run waits for nothing, so its verdict is not what a client would see."""
    made = Rejection(Saturated("busy"), (FilterReport("capacity", 1, 0, ()),))
    told = explain_rehearsal(Rehearsal(made, decision.request, (Removal("capacity", decision.endpoints[:1]),)))
    assert (told["verdict"], told["reason"]) == ("refused", "saturated")
    assert told["removed"][0]["why"] == "as many requests or tokens in flight as it may have"
    assert "waits for its turn" in told["notes"][0]


def test_e17_a_rehearsed_request_that_finds_all_asleep_is_told_what_real_ones_wait_for(decision: Decision) -> None:
    """A dry run wakes nobody."""
    made = Rejection(Asleep("all asleep"), (FilterReport("sleep", 1, 0, ()),))
    told = explain_rehearsal(Rehearsal(made, decision.request, (Removal("sleep", decision.endpoints[:1]),)))
    assert (told["verdict"], told["reason"], told["removed"][0]["why"]) == ("refused", "asleep", "its engine sleeps")
    assert "`queue.wake_s`" in told["notes"][0]


@pytest.mark.parametrize(
    ("ttft", "tpot", "told"),
    [
        (0.8, 0.05, {"ttft_kept": True, "tpot_kept": True}),
        (0.7, 0.001, {"ttft_kept": False, "tpot_kept": False}),
        (None, 0.05, {"tpot_kept": True}),
        (None, None, {}),
    ],
)
def test_it_is_told_whether_targets_were_kept(
    decision: Decision, outcome_of: OutcomeOf, ttft: float | None, tpot: float | None, told: dict[str, bool]
) -> None:
    """Of a request that wants times they are shown, and with its outcome whether they were kept."""
    request = msgspec.structs.replace(decision.request, ttft_target=ttft, tpot_target=tpot)
    wanted = msgspec.structs.replace(decision, request=request)
    explained = explain(wanted, outcome_of(first_token=0.75, usage=Usage(100, 31, 0)))
    assert {name: value for name, value in explained["comparison"].items() if name.endswith("_kept")} == told
    shown = {name: value for name, value in explained.items() if name.endswith("_target_ms")}
    expected = {"ttft_target_ms": ttft, "tpot_target_ms": tpot}
    assert shown == {name: value * 1e3 for name, value in expected.items() if value is not None}


def test_a_time_that_is_not_known_is_neither_kept_nor_missed(decision: Decision, outcome_of: OutcomeOf) -> None:
    """Without a first token nothing is said of either."""
    request = msgspec.structs.replace(decision.request, ttft_target=1.0, tpot_target=1.0)
    told = explain(msgspec.structs.replace(decision, request=request), outcome_of(usage=Usage(100, 31, 0)))
    assert not [name for name in told["comparison"] if name.endswith("_kept")]
