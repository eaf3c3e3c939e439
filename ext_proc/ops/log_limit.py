"""Holds back log lines of a kind beyond so many a second, and counts them."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_KINDS: Final = 256
"""Kinds with a count of their own; more share one, so that no caller can make the limit grow."""

OTHER: Final = "other"
WINDOW_S: Final = 1.0
QUIET_S: Final = 2.0
"""Seconds without a line after which a flood is over, so that no line to come will tell its count soon."""


class _Window(msgspec.Struct):
    start: float
    lines: int = 0
    suppressed: int = 0


class LineLimit:
    """Lets so many lines a second through of each kind.

    Args:
        per_second: lines of one kind in a second, at most.
    """

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str, now: float) -> int | None:
        """Ask for a line: None holds it back, a number says how many were held back since the last one.

        Args:
            kind: what is alike; a flood of one kind takes nothing from another.
            now: monotonic seconds.
        """
        window = self._windows.get(kind)
        if window is None:
            window = self._open(kind, now)
        if now - window.start >= WINDOW_S:
            window.start, window.lines = now, 0
        if window.lines >= self._per_second:
            window.suppressed += 1
            return None
        window.lines += 1
        suppressed, window.suppressed = window.suppressed, 0
        return suppressed

    def ended(self, now: float) -> dict[str, int]:
        """Take the counts of floods that are over, kind → lines held back, and forget kinds that are quiet."""
        known = list(self._windows.items())  # at once: what libraries log may come from other threads
        quiet = [kind for kind, window in known if now - window.start >= QUIET_S]
        counts = {kind: self._windows.pop(kind).suppressed for kind in quiet}
        return {kind: count for kind, count in counts.items() if count}

    def drain(self) -> dict[str, int]:
        """Take all counts that no line has told yet."""
        counts = {kind: window.suppressed for kind, window in list(self._windows.items()) if window.suppressed}
        self._windows.clear()
        return counts

    def _open(self, kind: str, now: float) -> _Window:
        if len(self._windows) >= MOST_KINDS:
            kind = OTHER
        return self._windows.setdefault(kind, _Window(now))
