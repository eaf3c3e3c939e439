"""random: any endpoint, from the seeded generator."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking


class Random:
    """Draws a cost for each candidate."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost each candidate a random number."""
        return Ranking([context.generator.random() for _ in candidates], counts="a draw")
