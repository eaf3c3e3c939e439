"""A structlog logger of its own configuration: one JSON or console line per event, on one stream."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, TypeVar

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

_MOST_WAITING = 32
"""Lines that may wait to be made."""

Told = TypeVar("Told")


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

    Those that come with each request are made when some have gathered, and always before others and before a flush: by
    the dozen they take half the time, since the processor has code and data at hand then. A stream that fails loses its
    lines, which are counted, and nothing else: a full disk must not stop requests.

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
        self._waiting: deque[tuple[Callable[[Any], bytes], Any]] = deque()

    def info(self, line: bytes) -> None:
        """Write a line that may wait for company; for the thread of the event loop, as the others need not be."""
        self._write(line)
        self.waits.set()

    debug = info

    def later(self, make: Callable[[Told], bytes], told: Told) -> None:
        """Write a line that will be made of what it tells; for the thread of the event loop.

        Args:
            make: makes the line.
            told: what it is made of, which nobody alters any more.
        """
        self._waiting.append((make, told))
        if len(self._waiting) == 1:  # whoever flushes is told once
            self.waits.set()
        elif len(self._waiting) >= _MOST_WAITING:
            self._make()

    def error(self, line: bytes) -> None:
        """Write a line that somebody should see soon."""
        self._write(line)
        self.flush()

    def _write(self, line: bytes) -> None:
        self._make()
        self._put([line])

    def _make(self) -> None:
        """Make the lines that wait for it."""
        waiting, lines = self._waiting, []
        with suppress(IndexError):  # line by line, since lines of libraries may come from other threads
            while waiting:
                make, told = waiting.popleft()
                try:
                    lines.append(make(told))
                except Exception:  # noqa: BLE001  one that cannot be made must not cost the others, nor a request
                    self.lost += 1
        self._put(lines)

    def _put(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        try:
            self._stream.write(b"\n".join([*lines, b""]))
            self.failing = False
        except (OSError, ValueError):
            self.lost += len(lines)
            self.failing = True

    def flush(self) -> None:
        """Pass on what is waiting."""
        self.waits.clear()
        self._make()
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
