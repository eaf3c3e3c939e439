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
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HINTS: Final = (
    (b"\xff\xfe", "this is UTF-16; make it UTF-8 (iconv -f utf-16 -t utf-8)"),
    (b"\xfe\xff", "this is UTF-16; make it UTF-8 (iconv -f utf-16 -t utf-8)"),
    (b"[", "this is a JSON array; jq -c '.[]' makes lines of one"),
    (b"{", "its first line is no JSON object that is a request or has one; jq -c . writes one object a line"),
)
"""What the first bytes of a file of no known format tell, and how to mend it."""


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
        self.where = where
        self.unusable = 0
        self.first = ""

    def refuse(self, number: int, reason: str) -> None:
        """Count a line; number 0 is one whose place is not known any more."""
        self.unusable += 1
        self.first = self.first or f"{self.where}{f':{number}' if number else ''}: {reason}"


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
            reader = _format(format_, [line for _, line in first], tally)()
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
        yield _unpacked(sys.stdin.buffer)
        return
    with path.open("rb") as plain:
        yield _unpacked(plain)


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    """Unpack a stream that begins as gzip does; a stream that cannot be looked into is taken as it is."""
    peek = getattr(stream, "peek", None)
    is_packed = peek is not None and peek(len(_GZIP))[: len(_GZIP)] == _GZIP
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if is_packed else stream


def _lines(stream: IO[bytes], tally: _Tally) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers from 1."""
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            tally.refuse(number, f"longer than {LONGEST_LINE} bytes; leave such requests out")
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        elif line := line.strip():
            yield number, line


def _format(wanted: str, lines: list[bytes], tally: _Tally) -> type[LineFormat]:
    if wanted:
        return FORMATS[wanted]
    if not lines:
        raise ConfigError(
            f"it holds no line that can be used. {tally.first}" if tally.first else "it holds no line",
            where=tally.where,
        )
    for line in lines:
        for made in FORMATS.values():
            if made.recognises(line):
                return made
    hint = next((f"{hint}; or " for begin, hint in _HINTS if lines[0].startswith(begin)), "")
    raise ConfigError(
        f"its first lines are of no known format; {hint}name it with --format ({', '.join(FORMATS)})", where=tally.where
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
