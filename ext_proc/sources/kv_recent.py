"""Tells a live KV message that comes once more, or late, from one of a new process, whose numbers begin anew."""

from __future__ import annotations

import math

_BEGINNING = 256
_MOST = 64


def beginning(payload: bytes) -> bytes:
    """Return what tells a payload from others: its beginning, where the time is that it was made."""
    return payload[:_BEGINNING]


class Recent:
    """The latest live messages of one connection."""

    def __init__(self) -> None:
        self._beginnings: dict[int, bytes] = {}
        self._number = -1
        self._at = -math.inf

    def note(self, number: int, at: float | None, payload: bytes) -> None:
        """Remember a message as the latest; the oldest is forgotten."""
        self._beginnings[number] = beginning(payload)
        self._number = number
        self._at = self._at if at is None else at
        if len(self._beginnings) > _MOST:
            del self._beginnings[next(iter(self._beginnings))]

    def has(self, number: int, at: float | None, payload: bytes) -> bool:
        """Tell whether a message was here already, or was made before the latest and comes late.

        A number 0 behind others is that of a new process, which may have another clock.
        """
        if number > self._number or number == 0 < self._number:
            return False
        return self._beginnings.get(number) == beginning(payload) or (at is not None and at < self._at)

    def clear(self) -> None:
        """Forget all: who publishes after this may be another process."""
        self._beginnings.clear()
        self._number = -1
        self._at = -math.inf
