"""The watcher of one file, with real files."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.sources import files
from ext_proc.sources.files import FileWatcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Seen:
    """A consumer that keeps what it is told, and refuses texts that say so."""

    def __init__(self, path: Path) -> None:
        self.values: list[str] = []
        self.errors: list[str] = []
        self.watcher = FileWatcher(path, self.parse, self.take, lambda error: self.errors.append(str(error)))

    @staticmethod
    def parse(text: str, source: str) -> str:
        """Fail as a parser does, and as one that has a fault."""
        if text == "bad":
            raise ConfigError("bad text", path=source)
        if text == "bug":
            raise ZeroDivisionError("bug")
        return text

    def take(self, value: str) -> None:
        """Fail as a consumer with a fault does."""
        if value == "unusable":
            raise RuntimeError("cannot apply")
        self.values.append(value)


class Counting(Seen):
    """One that also counts how often the event loop is woken to look at the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looks = 0
        real = self.watcher._look

        async def look() -> None:
            self.looks += 1
            await real()

        self.watcher._look = look  # type: ignore[method-assign]


async def _until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, "condition not met in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


@asynccontextmanager
async def _running(seen: Seen) -> AsyncIterator[None]:
    task = asyncio.create_task(seen.watcher.run())
    try:
        yield
    finally:
        assert not task.done(), "the watch ended"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _rename_into_place(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def test_check_reads_the_file_at_once(tmp_path: Path) -> None:
    """At the start the content is there before anything else happens; a BOM is no part of it."""
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone")
    seen = Seen(tmp_path / "f")
    seen.watcher.check()
    assert (seen.values, seen.errors, seen.watcher.error) == (["one"], [], None)


def _write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("text", ["two", "three"], ids=["same length", "other length"])
@pytest.mark.parametrize("write", [_rename_into_place, _write_in_place], ids=["renamed", "in place"])
async def test_a_change_is_applied_within_half_a_second(
    tmp_path: Path, write: Callable[[Path, str], None], text: str
) -> None:
    """Renamed into place or written in place, of equal length or not, an edit is applied soon."""
    path = tmp_path / "f"
    path.write_text("one")
    seen = Seen(path)
    seen.watcher.check()
    async with _running(seen):
        write(path, text)
        assert await _until(lambda: seen.values == ["one", text]) < 0.5


async def test_a_symlink_swap_is_seen(tmp_path: Path) -> None:
    """A Kubernetes ConfigMap changes by swapping a link to a directory above the file."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "f").write_text(version)
    (tmp_path / "data").symlink_to("v1")
    seen = Seen(tmp_path / "data" / "f")
    seen.watcher.check()
    async with _running(seen):
        (tmp_path / "data_tmp").symlink_to("v2")
        (tmp_path / "data_tmp").rename(tmp_path / "data")
        await _until(lambda: seen.values == ["v1", "v2"])


async def test_a_missing_file_is_reported_once_and_picked_up_when_it_comes(tmp_path: Path) -> None:
    """Absence at the start is no reason to stop (I16)."""
    seen = Seen(tmp_path / "f")
    for _ in range(3):
        seen.watcher.check()
    async with _running(seen):
        _rename_into_place(tmp_path / "f", "one")
        await _until(lambda: seen.values == ["one"])
    assert seen.errors == [f"{tmp_path / 'f'}: No such file or directory"]
    assert seen.watcher.error is None


async def test_a_deleted_file_that_returns_unchanged_is_good_again(tmp_path: Path) -> None:
    """Deletion is an error that keeps the last value, and the same content clears it."""
    path = tmp_path / "f"
    path.write_text("one")
    seen = Seen(path)
    seen.watcher.check()
    async with _running(seen):
        path.unlink()
        await _until(lambda: seen.watcher.error is not None)
        assert seen.values == ["one"]
        path.write_text("one")
        await _until(lambda: seen.watcher.error is None)


@pytest.mark.parametrize(
    ("text", "message"),
    [("bad", "f: bad text"), ("bug", "bug"), ("unusable", "cannot apply")],
    ids=["parser refuses", "parser has a fault", "consumer fails"],
)
async def test_a_bad_content_is_reported_once_and_the_next_good_one_applied(
    tmp_path: Path, text: str, message: str
) -> None:
    """Whatever goes wrong with a content, the watch goes on and the next good one is applied (I01)."""
    path = tmp_path / "f"
    path.write_text(text)
    seen = Seen(path)
    for _ in range(3):
        seen.watcher.check()
    async with _running(seen):
        _rename_into_place(path, "one")
        await _until(lambda: seen.values == ["one"])
    assert [error.endswith(message) for error in seen.errors] == [True]
    assert seen.watcher.error is None


def test_an_untouched_or_merely_touched_file_is_no_news(tmp_path: Path) -> None:
    """Another time stamp with the same content calls nobody."""
    path = tmp_path / "f"
    path.write_text("one")
    seen = Seen(path)
    seen.watcher.check()
    os.utime(path, (1, 1))
    seen.watcher.check()
    assert seen.values == ["one"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is not a regular file"),
        (_fifo, "is not a regular file"),
        (_large, "is larger than 16777216 bytes"),
        (lambda path: path.write_bytes(b"ab\xff"), "is not UTF-8 at byte 2"),
    ],
    ids=["directory", "FIFO", "huge", "not UTF-8"],
)
def test_what_is_no_text_file_is_an_error_with_its_path(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    """Nothing found under the path can hang the watcher or exhaust memory."""
    make(tmp_path / "f")
    seen = Seen(tmp_path / "f")
    seen.watcher.check()
    assert (seen.values, seen.errors) == ([], [f"{tmp_path / 'f'}: {message}"])


async def test_a_file_being_written_in_place_is_not_read_half(tmp_path: Path) -> None:
    """Content that still changes is left until it lies still."""
    path = tmp_path / "f"
    path.write_text("one")
    seen = Seen(path)
    seen.watcher.check()
    async with _running(seen):
        with path.open("w", buffering=1) as file:
            for line in range(60):
                file.write(f"{line}\n")
                await asyncio.sleep(0.01)
        await _until(lambda: len(seen.values) > 1)
    assert seen.values[1].splitlines()[-1] == "59"


async def test_a_file_that_lies_still_does_not_wake_the_event_loop(tmp_path: Path) -> None:
    """It is looked at by a thread, which wakes the event loop for a change and ends with the watch."""
    path = tmp_path / "lies-still"
    path.write_text("one")
    seen = Counting(path)
    async with _running(seen):
        await _until(lambda: seen.values == ["one"])
        before = seen.looks
        await asyncio.sleep(3 * files.INTERVAL_S)
        assert seen.looks == before
        _rename_into_place(path, "two")
        await _until(lambda: seen.values == ["one", "two"])
        assert [each for each in threading.enumerate() if each.name == "watch lies-still"]
    await _until(lambda: not [each for each in threading.enumerate() if each.name == "watch lies-still"])


async def test_a_file_that_is_not_there_does_not_wake_the_event_loop(tmp_path: Path) -> None:
    """A list of endpoints may be written long after the start; once it is, it is seen."""
    path = tmp_path / "comes-late"
    seen = Counting(path)
    async with _running(seen):
        await _until(lambda: len(seen.errors) == 1)
        before = seen.looks
        await asyncio.sleep(3 * files.INTERVAL_S)
        assert seen.looks <= before + 1
        _rename_into_place(path, "one")
        await _until(lambda: seen.values == ["one"])
        path.unlink()
        await _until(lambda: len(seen.errors) == 2)
