"""Frees what only the garbage collector can free: the cycles that ended tasks and connections leave behind.

Decisions leave none, so collections by count are rare, and what is alive at one of them by chance would wait for the
next of an older generation, which takes hours. Where endpoints come and go that is growth without an end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

INTERVAL_S = 60.0
"""Seconds between two collections."""

MOST_SHARE = 0.001
"""Of the time that they may take: a large process is collected less often, since requests wait meanwhile."""

LONGEST_S = 600.0
"""Between two collections, however long they take."""


class Collecting:
    """Collects all generations now and then.

    Args:
        collect: does it.
        work: seconds of work, to measure how long that takes.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        collect: Callable[[], int] = gc.collect,
        work: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._work = work
        self._clock = clock
        self._due = clock() + INTERVAL_S

    def tick(self) -> None:
        """Collect if it is time to."""
        if self._clock() < self._due:
            return
        began = self._work()
        self._collect()
        self._due = self._clock() + min(max(INTERVAL_S, (self._work() - began) / MOST_SHARE), LONGEST_S)
