"""What strategies may ask beyond the columns of a decision; nobody pays for what no strategy asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ext_proc.core.affinity import Affinity, session_name
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.reputation import Reputations
from ext_proc.core.served_models import ServedModels


class EngineView(Protocol):
    """What an engine says of itself; None where it says nothing or said it too long ago."""

    @property
    def waiting(self) -> float | None:
        """Requests in the engine's own queue."""

    @property
    def running(self) -> float | None:
        """Requests that the engine is working on."""

    @property
    def kv_usage(self) -> float | None:
        """Share of its KV cache that is in use, in [0, 1]."""


class EngineViews(Protocol):
    """The views of all engines."""

    def of(self, slot: int, now: float) -> EngineView | None:
        """Return the view of the engine in a slot; None if there is none. `now` in monotonic seconds."""

    def differ(self, now: float) -> bool:
        """Tell whether some engine has clearly more to do than another; what was found is kept for a second."""

    def levels(
        self, slots: Sequence[int], read: Callable[[EngineView], float | None], now: float
    ) -> list[float] | None:
        """Return one number of each slot, missing and old ones moved to the mean; None if nothing is known of any."""


class Knowledge(msgspec.Struct):
    """Where answers come from.

    Attributes:
        reputations: how well endpoints answered lately.
        sessions: which endpoint each session was sent to last.
        served: which models endpoints answered for lately.
        engines: what engines say of themselves; None if nobody asks them.
        tokens: tokens of so many leading blocks of a hash chain.
    """

    reputations: Reputations = msgspec.field(default_factory=Reputations)
    sessions: Affinity = msgspec.field(default_factory=Affinity)
    served: ServedModels = msgspec.field(default_factory=ServedModels)
    engines: EngineViews | None = None
    tokens: Callable[[int], int] = int

    def tied(self, request: InferenceRequest, now: float) -> str | None:
        """Return the address that the request's session was sent to last; None if it has none or is new."""
        return self.sessions.address(session_name(request), now) if request.session else None

    def levels(
        self, candidates: Sequence[Endpoint], read: Callable[[EngineView], float | None], now: float
    ) -> list[float] | None:
        """Return one number of each candidate's engine, fit to be compared; None if nothing is known of any."""
        if self.engines is None:
            return None
        return self.engines.levels([endpoint.slot for endpoint in candidates], read, now)

    def views(self, candidates: Sequence[Endpoint], now: float) -> list[EngineView | None]:
        """Return what the engine of each candidate says of itself."""
        if self.engines is None:
            return [None] * len(candidates)
        of = self.engines.of
        return [of(endpoint.slot, now) for endpoint in candidates]
