"""The last decisions joined with their outcomes."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from ext_proc.core.observer import NoObserver
from ext_proc.ops.explanations import describe_refusal, describe_request, explain, unknown_pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, FilterReport, InferenceRequest, Outcome
    from ext_proc.ops.explanations import Pace

CAPACITY = 256


class DecisionRing(NoObserver):
    """Remembers the last 256 decisions with their outcomes, and the last 256 refusals.

    Prompts are not kept: neither may they be shown, nor is there room for them. All that explaining takes is done when
    an explanation is asked for.

    Args:
        capacity: how many are remembered.
        pace: the seconds that an output token takes, as a rule, where a decision was served.
    """

    def __init__(self, capacity: int = CAPACITY, pace: Pace = unknown_pace) -> None:
        self._capacity = capacity
        self._pace = pace
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._outcomes: dict[str, Outcome] = {}
        self._refusals: deque[dict[str, Any]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._decisions)

    @property
    def fill(self) -> float:
        """How full it is, in [0, 1]."""
        return len(self._decisions) / self._capacity

    def decided(self, decision: Decision, seconds: float) -> None:  # noqa: ARG002  # the protocol has it
        """Remember a decision and forget the oldest."""
        self._decisions[decision.id] = decision
        if len(self._decisions) > self._capacity:
            oldest, _ = self._decisions.popitem(last=False)
            self._outcomes.pop(oldest, None)

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Remember why a request got no endpoint."""
        told = {**describe_request(request), **describe_refusal(refusal), "filters": list(map(str, filters))}
        self._refusals.append(told)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Join an outcome to its decision, if that is still remembered."""
        if decision.id in self._decisions:
            self._outcomes[decision.id] = outcome

    def explanations(self, limit: int = CAPACITY, request_id: str | None = None) -> list[dict[str, Any]]:
        """Explain the latest decisions, latest first; `request_id` may also be a decision's id."""
        found = zip(self._matching(request_id), range(limit), strict=False)
        return [explain(decision, outcome, self._pace) for (decision, outcome), _ in found]

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
