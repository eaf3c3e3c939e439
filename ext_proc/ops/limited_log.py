"""Writes events to the log, so many of a kind in a second at most, and says how many were held back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from ext_proc.core.model import ILLNESS, Ending
from ext_proc.ops.events import NEVER, Event
from ext_proc.ops.log_limit import LineLimit
from ext_proc.ops.logs import Log

FAULTS: Final = ILLNESS | {Ending.LOST}
"""Endings of requests that are limited as faults are: an outage would fill the disk with one message."""


class LimitedLog:
    """What all of kvpicker logs through.

    Args:
        log: where lines go.
        per_second: lines of one kind in a second, at most.
        requests_per_second: lines of requests that did not fail on an engine's side, at most; None writes all.
        held_back: counts a line that is not written, by the name of its event.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        log: Log,
        per_second: int,
        requests_per_second: int | None = None,
        held_back: Callable[[str], None] = lambda _event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._faults = LineLimit(per_second)
        self._requests = None if requests_per_second is None else LineLimit(requests_per_second)
        self._limits = [self._faults] if self._requests is None else [self._faults, self._requests]
        self._held_back = held_back
        self._clock = clock
        # Asked once: a request's line has many fields, and gathering them for nothing costs more than all the rest.
        self._tells_requests = log.is_enabled_for(logging.INFO)

    def say(self, event: Event, **fields: object) -> None:
        """Write a line of an event, unless there were too many of its kind."""
        if not self._log.is_enabled_for(_LEVELS[event.level]):
            return
        suppressed: int | None = 0
        if event.kind is not NEVER:
            suppressed = self._admit(self._faults, event, str(fields.get(event.kind, "")))
        if suppressed is not None:
            self.write(event, {**fields, "suppressed": suppressed} if suppressed else fields)

    def admit_request(self, ending: Ending) -> int | None:
        """Ask for the line of a request: None holds it back, a number says how many were since the last one."""
        if not self._tells_requests:
            return None
        if ending in FAULTS:
            return self._admit(self._faults, Event.REQUEST_FINISHED, ending)
        return 0 if self._requests is None else self._admit(self._requests, Event.REQUEST_FINISHED, "")

    def write(self, event: Event, fields: Mapping[str, object]) -> None:
        """Write a line that was admitted."""
        getattr(self._log, event.level)(event.name_, **fields)

    def report(self) -> None:
        """Say how many lines of floods that are over were held back; to be called every second or so."""
        now = self._clock()
        for limit in self._limits:
            self._tell(limit.ended(now))

    def close(self) -> None:
        """Say how many lines were held back and not told of yet."""
        for limit in self._limits:
            self._tell(limit.drain())

    def _admit(self, limit: LineLimit, event: Event, kind: str) -> int | None:
        suppressed = limit.admit(f"{event.name_} {kind}".rstrip(), self._clock())
        if suppressed is None:
            self._held_back(event.name_)
        return suppressed

    def _tell(self, counts: Mapping[str, int]) -> None:
        for kind, count in counts.items():
            self.write(Event.LINES_SUPPRESSED, {"kind": kind, "suppressed": count})


_LEVELS: Final = {level: getattr(logging, level.upper()) for level in ("debug", "info", "warning", "error")}
