"""Explanations for people with access to the admin server: decisions with their outcomes, and dry runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ext_proc.core.errors import Asleep, Saturated
from ext_proc.core.explanation import chosen_first, costs, milliseconds, ranked_by
from ext_proc.core.filters import CAPACITY
from ext_proc.core.model import GENERATING, Decision, Ending
from ext_proc.core.rehearsal import UNKNOWN_PATH
from ext_proc.core.sleepers import SLEEP
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import CostTerms, InferenceRequest, Outcome
    from ext_proc.core.rehearsal import Rehearsal, Removal

Pace: TypeAlias = "Callable[[Decision, str], float | None]"
"""The seconds that an output token takes, as a rule, for a decision at an address; None where that is not known."""

_WHY_REMOVED = {
    "model": "does not serve the model",
    "subset": "the gateway does not allow it",
    "lifecycle": "cordoned, draining or drained by an operator, or not ready by the word of its source",
    "health": "ejected after failures, warming up, or starting slowly",
    SLEEP: "its engine sleeps",
    CAPACITY: "as many requests or tokens in flight as it may have",
}


def unknown_pace(_decision: Decision, _address: str) -> None:
    """Know no pace."""


def explain(decision: Decision, outcome: Outcome | None, pace: Pace = unknown_pace) -> dict[str, Any]:
    """Say why a request went where it went, and what came of it; times in milliseconds, no prompt.

    Args:
        decision: what was decided.
        outcome: what became of it; None if that is not known yet.
        pace: the seconds that an output token takes, as a rule, where it was served.
    """
    return {
        **_decision(decision),
        "outcome": None if outcome is None else _outcome(outcome),
        "comparison": None if outcome is None else _comparison(decision, outcome, pace),
    }


def explain_rehearsal(rehearsal: Rehearsal) -> dict[str, Any]:
    """Say what would become of a request, and which endpoints were out of the question; no prompt."""
    told: dict[str, Any]
    made, request = rehearsal.made, rehearsal.request
    if made is None or request is None:
        told = {"verdict": "passed", "reason": UNKNOWN_PATH}
    elif isinstance(made, Decision):
        told = {"verdict": "picked", **_decision(made)}
        del told["decision_id"]
    else:
        filters = [str(report) for report in made.filters]
        told = {"verdict": "refused", **describe_request(request), **describe_refusal(made.refusal), "filters": filters}
        told["message"] = printable(str(made.refusal))
    told["removed"] = [_removed(removal) for removal in rehearsal.removals]
    told["notes"] = [printable(line) for line in rehearsal.failures]
    if told["reason"] == Saturated.reason:
        told["notes"].append("a real request waits for its turn first, as far as the `queue` of its pool lets it")
    if told["reason"] == Asleep.reason:
        told["notes"].append("a real request waits for one to be woken first, if `queue.wake_s` of its pool says so")
    if isinstance(made, Decision) and all(terms.unfit for terms in made.terms):
        told["notes"].append(
            "the prompt is larger than the KV memory of any candidate; it is sent, for the engine to refuse"
        )
    if told["reason"] == "tie":
        told["notes"].append("candidates cost the same: next time another of them may be chosen")
    return told


def describe_request(request: InferenceRequest) -> dict[str, Any]:
    """Show what was understood of a request, but not its prompt."""
    return {
        "request_id": printable(request.request_id),
        "operation": request.operation,
        "model": None if request.model is None else printable(request.model),
        "prompt_tokens": request.prompt_tokens,
        "unhashed": request.unhashed,
        "truncated": request.truncated,
        **_targets(request),
    }


def _targets(request: InferenceRequest) -> dict[str, float]:
    """Show the times that are wanted, if any are."""
    told = {"ttft_target_ms": request.ttft_target, "tpot_target_ms": request.tpot_target}
    return {name: milliseconds(seconds) for name, seconds in told.items() if seconds is not None}


def describe_refusal(refusal: Refusal) -> dict[str, Any]:
    """Show how a request was refused."""
    return {"status": refusal.status, "reason": refusal.reason}


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "decision_id": decision.id,
        **describe_request(decision.request),
        **ranked_by(decision),
        "reason": decision.reason,
        "endpoint": decision.chosen.address,
        "rank": decision.rank,
        "fallbacks": [endpoint.address for endpoint in decision.endpoints[1:]],
        "prompt_blocks": decision.chain_length,
        "predicted_cached_tokens": decision.hit_tokens,
        "predicted_by": _mode(decision, decision.chosen.address),
        "filters": [str(report) for report in decision.filters],
        "candidates": [_candidate(terms) for terms in chosen_first(decision)],
    }


def _candidate(terms: CostTerms) -> dict[str, Any]:
    told = {**costs(terms), "in_flight": terms.in_flight}
    if terms.scores and not terms.filtered:
        told["scores"] = {name: round(score, 4) for name, score in terms.scores.items()}
    return told


def _removed(removal: Removal) -> dict[str, Any]:
    return {
        "filter": removal.filter,
        "why": _WHY_REMOVED.get(removal.filter, "removed by this filter"),
        "endpoints": [endpoint.address for endpoint in removal.endpoints],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "request_id": printable(outcome.request_id),
        "ending": outcome.ending,
        "status": outcome.status,
        "served": outcome.served,
        "attempts": outcome.attempts,
        "details": printable(outcome.details),
        "duration_ms": milliseconds(outcome.duration),
        "first_byte_ms": None if outcome.first_byte is None else milliseconds(outcome.first_byte),
        "first_token_ms": None if outcome.first_token is None else milliseconds(outcome.first_token),
        "prompt_tokens": outcome.usage.prompt_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
    }


def _comparison(decision: Decision, outcome: Outcome, pace: Pace) -> dict[str, Any] | None:
    """Set prediction against truth for the endpoint that served; None if it was no candidate."""
    served = outcome.served or decision.chosen.address
    terms = next((terms for terms in decision.terms if terms.endpoint.address == served), None)
    if terms is None:
        return None
    seconds, basis = _time_to_first_token(decision, outcome, pace(decision, served))
    predicted = milliseconds(terms.wait) if terms.in_seconds and not terms.unfit else None
    told = None if seconds is None else milliseconds(seconds)
    true, estimated = (None, told) if basis == "estimate" else (told, None)
    return {
        "endpoint": served,
        "predicted_by": _mode(decision, served),
        "cached_tokens": _pair(terms.hit_tokens, outcome.usage.cached_tokens),
        "first_token_ms": {**_pair(predicted, true), "estimated": estimated, "basis": basis},
        **_kept(decision.request, outcome, seconds),
    }


def _kept(request: InferenceRequest, outcome: Outcome, first_token: float | None) -> dict[str, bool]:
    """Tell of each time that was wanted whether it was kept, where that is known."""
    told, tokens = {}, outcome.usage.completion_tokens
    if request.ttft_target is not None and first_token is not None:
        told["ttft_kept"] = first_token <= request.ttft_target
    if request.tpot_target is not None and outcome.first_token is not None and tokens is not None and tokens > 1:
        told["tpot_kept"] = (outcome.duration - outcome.first_token) / (tokens - 1) <= request.tpot_target
    return told


def _mode(decision: Decision, address: str) -> str | None:
    """Return by what cached tokens were predicted for an endpoint; None for one that was not named to Envoy."""
    made = decision.prediction(address)
    return None if made is None else made.mode


def _pair(predicted: float | None, true: float | None) -> dict[str, float | None]:
    error = None if predicted is None or true is None else round(predicted - true, 3)
    return {"predicted": predicted, "true": true, "error": error}


def _time_to_first_token(decision: Decision, outcome: Outcome, pace: float | None) -> tuple[float | None, str | None]:
    """Return the seconds until the first token, and what they are based on.

    `first_token`: its arrival was seen. `duration`: the answer was of one token or none, so its end was its beginning.
    `estimate`: the duration without what generating the other tokens takes at the usual pace. That may be too low where
    the pace is taken from whole stays, which hold waiting too; where nothing would be left, nothing is known.
    """
    if outcome.first_token is not None:
        return outcome.first_token, "first_token"
    tokens = outcome.usage.completion_tokens
    if decision.request.operation not in GENERATING or tokens in (0, 1):
        tokens = 1
    if outcome.ending is not Ending.OK or tokens is None:
        return None, None
    if tokens == 1:
        return outcome.duration, "duration"
    if pace is None:
        return None, None
    left = outcome.duration - (tokens - 1) * pace
    return (left, "estimate") if left > 0.0 else (None, None)
