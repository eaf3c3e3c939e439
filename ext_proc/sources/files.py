"""Watches one file and hands on each usable content of it; the last good one stays in force."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from ext_proc.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S = 0.2
"""Time between two looks. Polling sees what inotify misses: swaps of a directory above, network file systems."""

SETTLE_S = 0.05
"""How long a file must lie still, so that one being written in place is not read half."""

MAX_BYTES = 16 * 1024 * 1024
"""Size above which a file is refused, so that a mistake in a path cannot exhaust memory."""

_T = TypeVar("_T")
_Stamp: TypeAlias = tuple[int, ...] | None
"""What tells one state of a file from another; None for no file, `_UNREAD` for a state not known for certain."""

_UNREAD: _Stamp = ()


class _Reading(msgspec.Struct, frozen=True):
    """What one look at the file found; `content` is bytes, or the message of why there are none."""

    stamp: _Stamp
    content: bytes | str


class FileWatcher(Generic[_T]):
    """Parses a file at the start and after each change.

    Renames, symlink swaps, deletion and return, and writing in place are all seen within `interval` plus two times
    `SETTLE_S`. A content is reported once, good or bad; a touched file with the same content is no news.
    """

    def __init__(
        self,
        path: Path | str,
        parse: Callable[[str, str], _T],
        on_value: Callable[[_T], None],
        on_error: Callable[[Exception], None],
        *,
        interval: float = INTERVAL_S,
    ) -> None:
        """Watch nothing yet; see `check` and `run`.

        Args:
            path: the file; it need not exist.
            parse: makes a value of text and source name; runs in another thread under `run`, and raises for a
                content that cannot be used.
            on_value: takes each value that differs in its text from the one before.
            on_error: takes each fault once per content; must not raise.
            interval: seconds between two looks.
        """
        self.path = Path(path)
        self.error: Exception | None = None
        """Why the present content is not in force; None while it is."""
        self._parse = parse
        self._on_value = on_value
        self._on_error = on_error
        self._interval = interval
        self._stamp = _UNREAD
        self._content: bytes | str | None = None

    def check(self) -> None:
        """Look at the file at once, in this thread; for the start, before requests are served."""
        reading = self._read()
        if self._note(reading):
            self._deliver(self._value_of(reading))
        # An edit right after this may leave the same stamp, so the first look of `run` reads again.
        self._stamp = _UNREAD

    async def run(self) -> None:
        """Look at the file until cancelled; no fault of the file or of a callback ends this."""
        changed = asyncio.Event()
        sentry = _Sentry(self.path, self._interval, asyncio.get_running_loop(), changed)
        sentry.start()
        try:
            while True:
                try:
                    await self._look()
                except Exception as error:  # noqa: BLE001 - a watch that ends would go unnoticed until the next edit
                    with contextlib.suppress(Exception):
                        self._fail(error)
                sentry.known = self._stamp
                changed.clear()
                await changed.wait()
        finally:
            sentry.over.set()

    async def _look(self) -> None:
        # In a thread: a file system that hangs, or a long parse, must not hold up requests.
        stamp = await asyncio.to_thread(_stamp_of, self.path)
        if stamp == self._stamp:
            return
        await asyncio.sleep(SETTLE_S)
        reading = await asyncio.to_thread(self._read)
        if reading.stamp == stamp and self._note(reading):
            self._deliver(await asyncio.to_thread(self._value_of, reading))

    def _note(self, reading: _Reading) -> bool:
        """Remember a reading and tell whether its content is news."""
        # What is there and could not be read is read again, whether or not its stamp changes.
        is_known = isinstance(reading.content, bytes) or reading.stamp is None
        self._stamp = reading.stamp if is_known else _UNREAD
        if reading.content == self._content:
            return False
        self._content = reading.content
        return True

    def _read(self) -> _Reading:
        stamp = _stamp_of(self.path)
        content: bytes | str
        try:
            content = _content_of(self.path)
        except OSError as error:
            content = error.strerror or type(error).__name__
        return _Reading(stamp if _stamp_of(self.path) == stamp else _UNREAD, content)

    def _value_of(self, reading: _Reading) -> _T | Exception:
        source = str(self.path)
        if isinstance(reading.content, str):
            return ConfigError(reading.content, path=source)
        try:
            return self._parse(reading.content.decode("utf-8-sig"), source)
        except UnicodeDecodeError as error:
            return ConfigError(f"is not UTF-8 at byte {error.start}", path=source)
        except Exception as error:  # noqa: BLE001 - whatever the parser raises, the last good value stays
            return error

    def _deliver(self, value: _T | Exception) -> None:
        if isinstance(value, Exception):
            self._fail(value)
            return
        try:
            self._on_value(value)
        except Exception as error:  # noqa: BLE001 - a value that cannot be applied is a bad content like any other
            self._fail(error)
        else:
            self.error = None

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._on_error(error)


class _Sentry(threading.Thread):
    """Looks at a file again and again, in a thread of its own: the event loop is woken by a change alone.

    It is not waited for in the end: a file system that hangs would hold up everything.

    Attributes:
        known: the state that is no change.
        over: ends it once it is set.
    """

    def __init__(self, path: Path, interval: float, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
        super().__init__(name=f"watch {path.name}", daemon=True)
        self.known: _Stamp = _UNREAD
        self.over = threading.Event()
        self._path = path
        self._interval = interval
        self._loop = loop
        self._changed = changed

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(self._interval):
            if _stamp_of(self._path) == self.known:
                continue
            with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._changed.set)


def _stamp_of(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _content_of(path: Path) -> bytes | str:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for a writer
        return "is not a regular file"
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    return content if len(content) <= MAX_BYTES else f"is larger than {MAX_BYTES} bytes"
