"""Caps on what an endpoint may hold."""

from __future__ import annotations

import msgspec


class Caps(msgspec.Struct, frozen=True, gc=False):
    """What an endpoint may hold at most; None is no cap.

    Attributes:
        requests: requests in flight.
        tokens: prompt and expected output tokens in flight.
    """

    requests: int | None = None
    tokens: int | None = None

    def over(self, other: Caps) -> Caps:
        """Return these caps, and those of another one where there are none here."""
        if other in (self, NO_CAPS):
            return self
        return Caps(
            other.requests if self.requests is None else self.requests,
            other.tokens if self.tokens is None else self.tokens,
        )


NO_CAPS = Caps()
