"""reputation: few requests in flight at an endpoint that answered well lately.

    cost_j = (n_j + 1) / max(score_j, 0.01)

An endpoint with half the score of its peers gets about half as many requests; none is starved, so each can mend its
name. How success, speed and health make the score is told in `ext_proc.core.reputation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking

_LEAST_SCORE = 0.01


class Reputation:
    """least-request, weighed by what is said of the endpoints."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost each candidate its requests in flight, this one included, by its score."""
        scores = context.knowledge.reputations.scores(candidates, context.now)
        loads = context.loads
        costs = [(load.in_flight + 1) / max(score, _LEAST_SCORE) for load, score in zip(loads, scores, strict=True)]
        return Ranking(costs, counts="requests over score")
