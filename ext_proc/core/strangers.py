"""Requests that others placed, as far as they are reported: other kvpickers, this one before a restart, Envoy itself.

They weigh nothing in decisions, but a drain waits for them.
"""

from __future__ import annotations

from collections import Counter

MOST = 100_000


class Strangers:
    """Where they run, by the names that their reports have.

    Args:
        silence: seconds without a report after which one is taken to have ended.
        limit: how many are remembered; of more, those not heard of for longest are forgotten.
    """

    def __init__(self, silence: float = 45.0, limit: int = MOST) -> None:
        self._silence = silence
        self._limit = limit
        self._running: dict[str, tuple[str, float]] = {}
        self._counts: Counter[str] = Counter()

    def seen(self, name: str, address: str, now: float) -> None:
        """Note that one runs at an address; monotonic seconds."""
        self.ended(name)
        self._running[name] = (address, now)
        self._counts[address] += 1
        if len(self._running) > self._limit:
            self.ended(next(iter(self._running)))

    def ended(self, name: str) -> None:
        """Note that one has ended; one that was never seen is no error."""
        known = self._running.pop(name, None)
        if known is None:
            return
        address = known[0]
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def expire(self, now: float) -> None:
        """Take those for ended that were not heard of for too long."""
        while self._running:
            name, (_, seen_at) = next(iter(self._running.items()))
            if seen_at + self._silence > now:
                return
            self.ended(name)

    def at(self, address: str) -> int:
        """Count those that run at an address."""
        return self._counts.get(address, 0)
