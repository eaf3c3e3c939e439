"""A structlog logger of its own configuration: one JSON or console line per event, on one stream."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import msgspec
import structlog
from structlog.dev import ConsoleRenderer
from structlog.processors import TimeStamper
from structlog.typing import FilteringBoundLogger

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

Log: TypeAlias = FilteringBoundLogger
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["json", "console"]

_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


def configure(level: Level, format: Format, lines: LineWriter) -> Log:  # noqa: A002  # the name of the setting
    """Make a logger that writes to `lines`; structlog's and logging's global settings stay untouched.

    Somebody must flush the lines every now and then: a flush for each request costs more than its line.
    """
    processors = [render_json] if format == "json" else _console(colors=lines.is_terminal)
    # Made directly, because wrap_logger would read structlog's global settings.
    logger: Any = structlog.make_filtering_bound_logger(level)
    bound: Log = logger(lines, processors, {})
    return bound


class LineWriter:
    """Writes lines to a stream; from warning on they are flushed at once, others with the next flush.

    A stream that fails loses its lines, which are counted, and nothing else: a full disk must not stop requests.

    Attributes:
        lost: how many lines were lost.
        failing: whether the last one was.
        is_terminal: whether somebody watches.
        waits: set as long as lines may wait to be flushed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.lost = 0
        self.failing = False
        self.is_terminal = stream.isatty()
        self.waits = asyncio.Event()
        self._stream = stream

    def info(self, line: bytes) -> None:
        """Write a line that may wait for company; for the thread of the event loop, as the others need not be."""
        self._write(line)
        self.waits.set()

    debug = info

    def error(self, line: bytes) -> None:
        """Write a line that somebody should see soon."""
        self._write(line)
        self.flush()

    def _write(self, line: bytes) -> None:
        try:
            self._stream.write(line + b"\n")
            self.failing = False
        except (OSError, ValueError):
            self.lost += 1
            self.failing = True

    def flush(self) -> None:
        """Pass on what is waiting."""
        self.waits.clear()
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.failing = True
            self.waits.set()

    warning = warn = exception = critical = fatal = error


def render_json(_logger: WrappedLogger, level: str, event: EventDict) -> bytes:
    """Render an event of structlog as one JSON object."""
    return json_line(level, event.pop("event"), event)


def json_line(level: str, name: str, fields: Mapping[str, Any]) -> bytes:
    """Render an event as one JSON object: time, level, event, then its fields in the order given."""
    line = {"time": dt.datetime.now(dt.UTC), "level": level, "event": name, **fields}
    try:
        return _ENCODE(line)
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form, and a log line must not fail.
        return _ENCODE({key: _encodable(value) for key, value in line.items()})


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else repr(value)


def _console(*, colors: bool) -> list[Processor]:
    return [TimeStamper(fmt="%H:%M:%S", utc=False), _add_level, ConsoleRenderer(colors=colors), _to_bytes]


def _add_level(_logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
    event["level"] = level
    return event


def _to_bytes(_logger: WrappedLogger, _level: str, text: Any) -> bytes:
    return str(text).encode("utf-8", "backslashreplace")
