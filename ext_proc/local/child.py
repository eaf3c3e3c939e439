"""A child process that says on its output when it is ready, and whose last words are kept."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.local import processes
from ext_proc.local.lifeline import Lifeline

START_TIMEOUT = 30.0
STOP_GRACE = 3.0
TAIL_LINES = 20
MAX_LINE = 2000
READ_SIZE = 65536


class ChildFailed(KvpickerError):
    """A process of the stack ended by itself or did not start."""


class Child:
    """A process that runs while the context is entered, watched by the lifeline.

    Args:
        name: what people call it.
        lifeline: ends it if this process is killed.
        argv: the command.
        announces: the field that the line of JSON has by which it says that it is ready.
    """

    def __init__(self, name: str, lifeline: Lifeline, *argv: str | Path, announces: str) -> None:
        self.name = name
        self._lifeline = lifeline
        self._argv = argv
        self._announces = announces
        self._announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start it; `announcement` tells when it is ready."""
        self._process = await processes.spawn(*self._argv, output=asyncio.subprocess.PIPE)
        self._lifeline.watch(self._process.pid)
        self._reader = asyncio.create_task(self._read(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it, unless it has ended."""
        if self._process is None or self._reader is None:
            return
        await processes.stop(self._process, STOP_GRACE)
        self._lifeline.forget(self._process.pid)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    async def announcement(self, timeout_s: float = START_TIMEOUT) -> dict[str, Any]:
        """Wait for the line that says it is ready.

        Raises:
            ChildFailed: it ended, or said nothing in time.
        """
        ended = asyncio.create_task(self.failure())
        waits: set[asyncio.Future[Any]] = {ended, self._announced}
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._announced.done():
                return self._announced.result()
            raise ended.result() if ended.done() else self._failed(f"was not ready after {timeout_s:.0f} s")
        finally:
            ended.cancel()

    async def failure(self) -> ChildFailed:
        """Wait until it ends, which nothing asked it to; returns the error that says so."""
        code = await self._running().wait()
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=STOP_GRACE)
        return self._failed(f"ended with {describe(code)}")

    def _failed(self, what: str) -> ChildFailed:
        return failed(self.name, what, "\n".join(self._tail))

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read in pieces, not lines, because no line may be too long for us."""
        assert process.stdout is not None  # noqa: S101 - it was started with a pipe
        rest = b""
        while piece := await process.stdout.read(READ_SIZE):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._note(line)
            rest = rest[:READ_SIZE]
        if rest:
            self._note(rest)

    def _note(self, line: bytes) -> None:
        self._tail.append(line[:MAX_LINE].decode("utf-8", "replace"))
        if self._announced.done() or not line.startswith(b"{"):
            return
        try:
            said = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if self._announces in said:
            self._announced.set_result(said)


def failed(name: str, what: str, log: str) -> ChildFailed:
    """Say what happened to a process, with the end of its log."""
    tail = "\n".join(f"  {line}" for line in log.splitlines())
    return ChildFailed(f"{name} {what}" + (f"; the end of its log:\n{tail}" if tail else " and logged nothing"))


def describe(code: int) -> str:
    """Name an exit code: `exit code 1`, or `signal SIGKILL`."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def kvpicker(*arguments: str | Path) -> list[str | Path]:
    """Make the command line of a kvpicker sub-command, run by this interpreter."""
    return [sys.executable, "-m", "ext_proc.cli", *arguments]
