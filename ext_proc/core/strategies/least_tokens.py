"""least-tokens: the endpoint with the fewest prompt and expected output tokens in flight."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking


class LeastTokens:
    """Counts tokens, so that one long request weighs as much as many short ones."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost each candidate its tokens in flight."""
        return Ranking([float(load.tokens) for load in context.loads], counts="tokens in flight")
