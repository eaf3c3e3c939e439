"""Keeps the endpoints of pods that were ready and are not, for a while, and with them all that is known of them.

A readiness probe that comes too late under load is no reason to forget what an engine's cache holds.
"""

from __future__ import annotations

from ext_proc.sources.kubernetes.endpoints import Found


class Patience:
    """Remembers who was ready.

    Args:
        seconds: how long an endpoint is kept that is not ready.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[str, float] = {}
        self._last = Found()

    @property
    def until(self) -> float | None:
        """When the next endpoint is given up, in monotonic seconds; None if none is to be."""
        return min(self._deadlines.values(), default=None)

    def kept(self, found: Found, now: float) -> Found:
        """Leave out of what was found those that were never ready, or have not been for too long."""
        before = self._last.owners
        deadlines = {
            address: self._deadlines.get(address, now + self._seconds)
            for address in found.unready
            if before.get(address) == found.owners[address]
        }
        self._deadlines = {address: deadline for address, deadline in deadlines.items() if now < deadline}
        gone = found.unready - self._deadlines.keys()
        if gone:
            found = Found(
                tuple(spec for spec in found.specs if spec.address not in gone),
                {address: owner for address, owner in found.owners.items() if address not in gone},
                found.unready - gone,
            )
        self._last = found
        return found
