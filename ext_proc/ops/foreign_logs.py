"""Turns what libraries log into lines of kvpicker's own, under the same limit and with the same discretion."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from aiohttp.http_exceptions import HttpProcessingError

from ext_proc.ops.events import Event
from ext_proc.ops.faults import evidence

Say: TypeAlias = Callable[..., None]
"""Writes a line of an event with fields."""


@contextmanager
def heard(say: Say) -> Iterator[None]:
    """Let `say` write what libraries log from warning on, for as long as the context is entered.

    Without anybody who listens, Python writes it to standard error, whole and as often as it comes.
    """
    handler = ForeignLogs(say)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class ForeignLogs(logging.Handler):
    """Passes on who logged, where in the code, and the type of the error, never a message: it may quote a request."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line for a record."""
        error = record.exc_info[1] if record.exc_info else None
        fields: dict[str, object] = {"library": record.name, "at": [f"{record.pathname}:{record.lineno}"]}
        if isinstance(error, HttpProcessingError):
            # A stranger's bytes that are no HTTP: nothing of ours is broken.
            fields["error"] = type(error).__name__
        else:
            fields |= evidence(error)
        self._say(Event.LIBRARY_COMPLAINED, **fields)
