"""Reads a trace of any known format: streamed, plain or gzip, unusable lines counted."""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.replay.decision_log import DecisionLog
from ext_proc.replay.lines import LineFormat
from ext_proc.replay.request_bodies import RequestBodies
from ext_proc.replay.token_traces import Azure, Mooncake
from ext_proc.sim.workload import SimRequest

FORMATS: Final[Mapping[str, type[LineFormat]]] = {
    made.name: made for made in (Mooncake, Azure, DecisionLog, RequestBodies)
}
"""Every format by name, in the order in which they are tried."""

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes; a longer line counts as unusable and is not held in memory."""

_LOOKED_AT = 20
_GZIP = b"\x1f\x8b"


class Trace(msgspec.Struct, frozen=True):
    """What was read of a trace.

    Attributes:
        name: the file's name.
        format: name of the format.
        block_tokens: tokens of a block.
        requests: the requests in the order of their times, `at` in seconds since the first; not a number in all of
            them if the trace has no times.
        unusable: how many lines could not be used.
        first_unusable: where the first of them stands and why it could not be used; empty if there is none.
        note: what a reader of the results should know; empty if nothing.
    """

    name: str
    format: str
    block_tokens: int
    requests: tuple[SimRequest, ...]
    unusable: int = 0
    first_unusable: str = ""
    note: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether the trace says when its requests came."""
        return not math.isnan(self.requests[0].at)


class _Tally:
    """What could not be used of a file."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.unusable = 0
        self.first = ""

    def refuse(self, number: int, reason: str) -> None:
        """Count a line; number 0 is one whose place is not known any more."""
        self.unusable += 1
        self.first = self.first or f"{self._where}{f':{number}' if number else ''}: {reason}"


def read_trace(path: Path, format_: str = "", limit: int | None = None) -> Trace:
    """Read a trace.

    Args:
        path: the file; `-` is standard input.
        format_: one of FORMATS; empty finds it out from the content.
        limit: how many requests are read from the beginning; None reads all.

    Raises:
        ConfigError: the file cannot be read, is of no known format, or holds no usable request.
    """
    tally = _Tally(str(path))
    try:
        with _opened(path) as stream:
            lines = _lines(stream, tally)
            first = list(islice(lines, _LOOKED_AT))
            reader = _format(format_, [line for _, line in first], str(path))()
            found = list(islice(_requests(reader, first, lines, tally), limit))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", where=str(path)) from error
    if not found:
        raise ConfigError(f"no request could be used. {tally.first or 'It is empty'}", where=str(path))
    requests = _timed(found, tally)
    return Trace(path.name, reader.name, reader.block_tokens, requests, tally.unusable, tally.first, reader.note)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    with path.open("rb") as plain:
        is_packed = plain.read(2) == _GZIP
        plain.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=plain)) if is_packed else plain


def _lines(stream: IO[bytes], tally: _Tally) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers from 1."""
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            tally.refuse(number, f"longer than {LONGEST_LINE} bytes; leave such requests out")
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        elif line := line.strip():
            yield number, line


def _format(wanted: str, lines: list[bytes], where: str) -> type[LineFormat]:
    if wanted:
        return FORMATS[wanted]
    if not lines:
        raise ConfigError("it holds no line", where=where)
    for line in lines:
        for made in FORMATS.values():
            if made.recognises(line):
                return made
    raise ConfigError(
        f"its first lines are of no known format; name it with --format ({', '.join(FORMATS)})", where=where
    )


def _requests(
    reader: LineFormat, first: list[tuple[int, bytes]], rest: Iterator[tuple[int, bytes]], tally: _Tally
) -> Iterator[SimRequest]:
    for lines in (iter(first), rest):
        for number, line in lines:
            try:
                request = reader.read(line)
            except ValueError as error:
                tally.refuse(number, str(error))
                continue
            if request is not None:
                yield request


def _timed(found: list[SimRequest], tally: _Tally) -> tuple[SimRequest, ...]:
    """Order requests by time and count it from the first; where some have times, the others cannot be placed."""
    timed = [request for request in found if not math.isnan(request.at)]
    if not timed:
        return tuple(found)
    for _ in range(len(found) - len(timed)):
        tally.refuse(0, "no `timestamp`, though other lines have one")
    timed.sort(key=lambda request: request.at)
    start = timed[0].at
    return tuple(msgspec.structs.replace(request, at=request.at - start) for request in timed)
