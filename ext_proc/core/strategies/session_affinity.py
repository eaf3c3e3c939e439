"""session-affinity: the endpoint that the client's session was sent to last; else another strategy's choice.

A session is what the client or the gateway calls its conversation. Its memory is kvpicker's own: several kvpickers of
one Envoy keep a session together only if the other strategy sends it to the same place by itself, as prefix-affinity
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking, Strategy, inside
from ext_proc.core.strategies.least_wait import LeastWait
from ext_proc.core.strategies.nested import StrategyChoice


class SessionAffinityParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of session-affinity.

    Attributes:
        then: the strategy for requests without a session, for new sessions, and when the session's endpoint is gone,
            ejected or not allowed.
    """

    then: StrategyChoice = StrategyChoice()


class SessionAffinity:
    """Follows the session as long as its endpoint is among the candidates."""

    Parameters: ClassVar[type[SessionAffinityParameters]] = SessionAffinityParameters

    def __init__(self, parameters: SessionAffinityParameters | None = None, *, then: Strategy | None = None) -> None:
        self._name = (parameters or SessionAffinityParameters()).then.name
        self._then = then or LeastWait()

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Rank as the other strategy does, and have the session's endpoint win."""
        ranking = self._then.rank(request, candidates, context)
        ranking = msgspec.structs.replace(ranking, inside=inside(self._name, ranking))
        address = context.knowledge.tied(request, context.now)
        place = next((place for place, endpoint in enumerate(candidates) if endpoint.address == address), None)
        if address is None or place is None:
            return ranking
        return msgspec.structs.replace(ranking, favourite=place, reason="session")
