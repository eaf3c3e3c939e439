"""The last decisions joined with their outcomes, and how each is explained."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from ext_proc.core.observer import NoObserver
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import CostTerms, Decision, FilterReport, InferenceRequest, Outcome

CAPACITY = 256


class DecisionRing(NoObserver):
    """Remembers the last 256 decisions with their outcomes, and the last 256 refusals.

    Prompts are not kept: neither may they be shown, nor is there room for them.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._outcomes: dict[str, Outcome] = {}
        self._refusals: deque[dict[str, Any]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._decisions)

    def decided(self, decision: Decision, seconds: float) -> None:  # noqa: ARG002  # the protocol has it
        """Remember a decision and forget the oldest."""
        self._decisions[decision.id] = decision
        if len(self._decisions) > self._capacity:
            oldest, _ = self._decisions.popitem(last=False)
            self._outcomes.pop(oldest, None)

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Remember why a request got no endpoint."""
        self._refusals.append({**_request(request), **_refusal(refusal), "filters": list(map(str, filters))})

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Join an outcome to its decision, if that is still remembered."""
        if decision.id in self._decisions:
            self._outcomes[decision.id] = outcome

    def explanations(self, limit: int = CAPACITY, request_id: str | None = None) -> list[dict[str, Any]]:
        """Explain the latest decisions, latest first; `request_id` may also be a decision's id."""
        found = self._matching(request_id)
        return [explain(decision, outcome) for (decision, outcome), _ in zip(found, range(limit), strict=False)]

    def refusals(self, limit: int = CAPACITY, request_id: str | None = None) -> list[dict[str, Any]]:
        """Show the latest refusals, latest first."""
        found = [told for told in reversed(self._refusals) if request_id in (None, told["request_id"])]
        return found[:limit]

    def _matching(self, request_id: str | None) -> Iterator[tuple[Decision, Outcome | None]]:
        for decision in reversed(self._decisions.values()):
            outcome = self._outcomes.get(decision.id)
            known_as = (decision.id, decision.request.request_id, outcome.request_id if outcome else decision.id)
            if request_id is None or request_id in known_as:
                yield decision, outcome


def explain(decision: Decision, outcome: Outcome | None) -> dict[str, Any]:
    """Say why a request went where it went, and what came of it; times in milliseconds, no prompt."""
    return {
        "decision_id": decision.id,
        **_request(decision.request),
        "strategy": decision.strategy,
        "reason": decision.reason,
        "endpoint": decision.chosen.address,
        "fallbacks": [endpoint.address for endpoint in decision.endpoints[1:]],
        "prompt_blocks": decision.chain_length,
        "predicted_cached_tokens": decision.hit_tokens,
        "filters": [str(report) for report in decision.filters],
        "candidates": [_candidate(terms) for terms in sorted(decision.terms, key=lambda terms: terms.cost)],
        "outcome": None if outcome is None else _outcome(outcome),
    }


def _request(request: InferenceRequest) -> dict[str, Any]:
    return {
        "request_id": printable(request.request_id),
        "operation": request.operation,
        "model": None if request.model is None else printable(request.model),
        "prompt_tokens": request.prompt_tokens,
        "unhashed": request.unhashed,
        "truncated": request.truncated,
    }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {"status": refusal.status, "reason": refusal.reason}


def _candidate(terms: CostTerms) -> dict[str, Any]:
    return {
        "endpoint": terms.endpoint.address,
        "cost_ms": _ms(terms.cost),
        "queue_ms": _ms(terms.queue),
        "prefill_ms": _ms(terms.prefill),
        "memory_ms": _ms(terms.memory),
        "hit_tokens": terms.hit_tokens,
        "in_flight": terms.in_flight,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "request_id": printable(outcome.request_id),
        "ending": outcome.ending,
        "status": outcome.status,
        "served": outcome.served,
        "attempts": outcome.attempts,
        "details": printable(outcome.details),
        "duration_ms": _ms(outcome.duration),
        "first_byte_ms": None if outcome.first_byte is None else _ms(outcome.first_byte),
        "prompt_tokens": outcome.usage.prompt_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
