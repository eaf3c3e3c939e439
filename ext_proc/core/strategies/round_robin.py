"""round-robin: one endpoint after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking


class RoundRobin:
    """Gives each request to the candidate whose last turn is longest ago.

    A shared counter would skip endpoints whenever requests with other candidates come in between.
    """

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost each candidate the number of its last turn; those without one come first, in their order."""
        turns, count = self._turns, len(candidates)
        costs = [float(turns.get(endpoint.slot, place - count)) for place, endpoint in enumerate(candidates)]
        turns[candidates[costs.index(min(costs))].slot] = context.turn
        return Ranking(costs, counts="its last turn")
