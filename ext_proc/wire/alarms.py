"""One timer for many waits of which nearly every one is over long before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)
Matter = TypeVar("Matter")

_LEAST_BETWEEN: Final = 0.01
"""Seconds between two looks at who waits, so that many who wait in vain cost little; nobody waits for less."""


class Alarms(Generic[Waiter, Matter]):
    """Calls somebody about something, unless it is told in time that there is no need.

    A timer of asyncio for each of them would cost several times as much.

    Args:
        ring: is called with who waits and what for.
    """

    def __init__(self, ring: Callable[[Waiter, Matter], None]) -> None:
        self._ring = ring
        self._waiting: dict[Waiter, tuple[float, Matter]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def set(self, waiter: Waiter, seconds: float, matter: Matter) -> None:
        """Call `waiter` in so many seconds, or some milliseconds later; whatever it waited for before is forgotten."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._waiting[waiter] = due, matter
        if self._timer is None or due < self._timer.when():
            self._arm(loop, due)

    def discard(self, waiter: Waiter) -> None:
        """Do not call, whether or not that was asked for."""
        self._waiting.pop(waiter, None)

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look)

    def _look(self) -> None:
        """Call those whose time has come; the timer runs on if nobody waits any more, since others will."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        overdue = [waiter for waiter, (due, _) in self._waiting.items() if due <= now]
        if self._waiting and len(overdue) < len(self._waiting):
            next_due = min(due for due, _ in self._waiting.values() if due > now)
            self._arm(loop, max(next_due, now + _LEAST_BETWEEN))
        for waiter in overdue:
            found = self._waiting.pop(waiter, None)
            if found is not None:  # else one of those before it took it back
                self._ring(waiter, found[1])
