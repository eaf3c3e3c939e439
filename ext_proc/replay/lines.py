"""What is common to all formats of traces: a line becomes a request, or is refused with a reason."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any, ClassVar, Protocol

import msgspec

from ext_proc.sim.workload import SimRequest

LARGEST_PROMPT = 10_000_000
"""Tokens; more is a mistake in the trace, and would fill memory with block ids."""

TYPICAL_OUTPUT = 300
"""Output tokens of a request whose trace does not tell; the figure the picker itself begins with."""

COARSE_BLOCK = 512
"""Tokens of a block in traces without content: coarse, since nothing is shared there."""

_LATEST = 1e18
_MILLISECONDS_FROM = 1e11
"""Numbers from here on are milliseconds since 1970: as seconds they would lie after the year 5000."""


class LineFormat(Protocol):
    """Reads the lines of one format; an object reads one trace, since ids of unshared blocks must not repeat.

    Attributes:
        name: what `--format` calls it.
        block_tokens: tokens of a block.
        note: what a reader of the results should know about the format; empty if nothing.
    """

    name: ClassVar[str]
    block_tokens: ClassVar[int]
    note: ClassVar[str]

    @staticmethod
    def recognises(line: bytes) -> bool:
        """Tell whether a line is of this format."""

    def read(self, line: bytes) -> SimRequest | None:
        """Return the request of a line, `at` in seconds on the trace's own clock; None for a line that tells of none.

        Raises:
            ValueError: the line cannot be used; the text says why and how to mend it.
        """


class Unshared:
    """Gives out ids of blocks that no other request has."""

    def __init__(self) -> None:
        # Far above the ids of traces, so that they never meet.
        self._next = itertools.count(1 << 48)

    def blocks(self, tokens: int, block_tokens: int) -> tuple[int, ...]:
        """Return new ids for the whole blocks of a prompt."""
        return tuple(itertools.islice(self._next, tokens // block_tokens))


def bounded(value: int, name: str, lowest: int) -> int:
    """Return a count of tokens.

    Raises:
        ValueError: it is below `lowest` or too large to be true.
    """
    if not lowest <= value <= LARGEST_PROMPT:
        raise ValueError(f"`{name}` is {value}; a number of tokens from {lowest} to {LARGEST_PROMPT} is expected")
    return value


def seconds_of(value: float | str, name: str) -> float:
    """Return a time in seconds; numbers are seconds, or milliseconds since 1970 where they are that large.

    Raises:
        ValueError: it is neither a number nor an ISO 8601 time.
    """
    if isinstance(value, str):
        return _seconds_of_text(value.strip(), name)
    if not -_LATEST < value < _LATEST:
        raise ValueError(f"`{name}` is out of range; give seconds, or milliseconds since 1970")
    return value / 1e3 if value >= _MILLISECONDS_FROM else float(value)


def _seconds_of_text(text: str, name: str) -> float:
    head, dot, fraction = text.partition(".")
    if dot:
        # Azure's traces have seven digits; fromisoformat takes six at most on all versions of Python.
        digits = len(fraction) - len(fraction.lstrip("0123456789"))
        text = f"{head}.{fraction[: min(digits, 6)]:0<6}{fraction[digits:]}"
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"`{name}` is no time; write it as 2026-01-31T23:59:59.5Z or as seconds") from None
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()


def json_object(line: bytes) -> dict[str, Any]:
    """Return a line's JSON object; empty if it is none."""
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
