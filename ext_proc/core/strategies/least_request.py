"""least-request: the endpoint with the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking


class LeastRequest:
    """Counts requests and nothing else."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost each candidate its requests in flight."""
        return Ranking([float(load.in_flight) for load in context.loads], counts="requests in flight")
