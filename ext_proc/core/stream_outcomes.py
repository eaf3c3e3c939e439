"""Remembers which decisions were settled by their own streams, and whether an access log tells of such ones too."""

from __future__ import annotations

from math import inf
from typing import Final

REMEMBERED: Final = 16_384
"""Decisions whose entry in an access log may still come: some seconds of a busy gateway's."""

LOG_FRESH_S: Final = 60.0
"""Seconds for which an access log is counted on after it was heard."""


class StreamOutcomes:
    """The decisions whose outcome was seen on the stream that they were made on."""

    def __init__(self) -> None:
        self._settled: dict[str, None] = {}
        self._heard_at = -inf

    def note(self, decision_id: str) -> None:
        """Remember a decision, and forget the one that was settled before all others if there are too many."""
        self._settled[decision_id] = None
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def __contains__(self, decision_id: str) -> bool:
        return decision_id in self._settled

    def log_heard(self, now: float) -> None:
        """Note that an access log spoke of a decision made on a stream that shows the answer too."""
        self._heard_at = now

    def has_log(self, now: float) -> bool:
        """Tell whether an access log will say how a request ended that its own stream saw no end of."""
        return now - self._heard_at <= LOG_FRESH_S
