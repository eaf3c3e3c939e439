"""Lines of traffic become records: bodies of requests, bodies in a wrapper, and traces of block ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.analyze.record import Record
from ext_proc.core.hashing import Hasher
from ext_proc.core.model import BlockHash, Unhashed
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.core.prompts.guessing import likely_path
from ext_proc.core.prompts.jsonbody import decode, loads, normalise

TRACE_BLOCK_TOKENS = 512
"""Tokens of a block of a trace of block ids, as Mooncake publishes them."""

_MILLISECONDS_ABOVE = 1e11
_MICROSECONDS_ABOVE = 1e14
_NANOSECONDS_ABOVE = 1e17
_MOST_TOKENS = 1_000_000_000
_LONGEST_PATH = 2_048
_ARRAY = "a JSON array and not an object; jq -c '.[]' makes lines of one"
_BEGINNING = "the beginning of a JSON object; jq -c . writes one object a line"
_LOG = (
    "a line of a log and no request; kvpicker's own log holds no prompts: record bodies of requests"
    " (kvpicker replay takes the log)"
)


class UnusableError(Exception):
    """A line holds no request that can be analysed; the message says why."""


class _Line(msgspec.Struct, gc=False):
    """The members that tell kinds of lines apart, and those of a wrapper."""

    hash_ids: Any = None
    input_length: Any = None
    output_length: Any = None
    body: msgspec.Raw = msgspec.Raw()
    path: Any = None
    url: Any = None
    timestamp: Any = None
    model: Any = None
    output_tokens: Any = None
    usage: Any = None
    event: Any = None


_decoder = msgspec.json.Decoder(_Line)


class LineReader:
    """Reads lines of every known kind; what a line is shows from its members.

    Args:
        hasher: prompt to hash chain.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._sizes: list[int] = []

    def read(self, text: bytes) -> Record:
        """Read one line.

        Raises:
            UnusableError: it holds no request with a prompt.
        """
        text = normalise(text).rstrip()
        try:
            line = decode(_decoder, text)
        except RecursionError:
            raise UnusableError("nested too deeply") from None
        except ValueError:
            raise UnusableError(_why_not(text)) from None
        if line.hash_ids is not None:
            return _of_trace(line)
        return self._of_body(line, text)

    def _of_body(self, line: _Line, text: bytes) -> Record:
        body = _unwrapped(bytes(line.body)) if bytes(line.body) else text
        path = next((held for held in (line.path, line.url) if isinstance(held, str)), "")
        if len(path) > _LONGEST_PATH:
            raise UnusableError("path too long")
        route = classify("POST", path or likely_path(body))
        if route is None:
            raise UnusableError("path of no known operation")
        request = parse(route, RequestHead(path=path), body, complete=True)
        if request.unhashed is Unhashed.NO_PROMPT and isinstance(line.event, str):
            raise UnusableError(_LOG)
        if request.unhashed is not None:
            raise UnusableError(_UNHASHED[request.unhashed])
        model = request.model or (line.model if isinstance(line.model, str) else None) or ""
        chain = self._hasher.chain(request, model)
        return Record(
            model=model,
            chain=chain,
            sizes=self._sizes_of(len(chain)),
            prompt_tokens=max(request.prompt_tokens, 1),
            prompt=request.prompt,
            namespace=request.namespace,
            output_tokens=_output_of(line),
            at=_seconds(line.timestamp),
        )

    def _sizes_of(self, blocks: int) -> list[int]:
        while len(self._sizes) < blocks:
            known = len(self._sizes)
            self._sizes.append(self._hasher.tokens(known + 1) - self._hasher.tokens(known))
        return self._sizes[:blocks]


def _why_not(text: bytes) -> str:
    """Say what a line is that is no JSON object."""
    if text[:1] == b"[":
        return _ARRAY
    return _BEGINNING if text == b"{" else "not a JSON object"


_UNHASHED = {
    Unhashed.NOT_GENERATION: "not a request that generates text",
    Unhashed.NO_BODY: "no body",
    Unhashed.NO_PROMPT: "no prompt",
    Unhashed.ODD_MODEL: "model is not a name",
    Unhashed.NOT_JSON: "body is not JSON",
    Unhashed.NOT_AN_OBJECT: "body is not a JSON object",
    Unhashed.TOO_DEEP: "nested too deeply",
    Unhashed.ENCODING_UNKNOWN: "body is in an unknown encoding",
    Unhashed.ENCODING_BROKEN: "body is broken",
}


def _unwrapped(body: bytes) -> bytes:
    """Return the body of a wrapper, which may be an object or a string that holds it."""
    if body[:1] != b'"':
        return body
    try:
        held = loads(body)
    except (ValueError, RecursionError):
        raise UnusableError("body is not JSON") from None
    return str(held).encode("utf-8", "surrogatepass")


def _of_trace(line: _Line) -> Record:
    """Read a line of a trace: timestamp in ms, lengths in tokens, and ids of blocks that each name a whole prefix."""
    ids, length = line.hash_ids, line.input_length
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise UnusableError("hash_ids is not a list of whole numbers")
    if length is None:
        length = len(ids) * TRACE_BLOCK_TOKENS
    if type(length) is not int or not 0 < length <= _MOST_TOKENS:
        raise UnusableError("input_length is not a number of tokens")
    chain = [_block_of(number) for number in ids[: length // TRACE_BLOCK_TOKENS]]
    model = line.model if isinstance(line.model, str) else ""
    at = line.timestamp
    return Record(
        model=model,
        chain=chain,
        sizes=[TRACE_BLOCK_TOKENS] * len(chain),
        prompt_tokens=length,
        output_tokens=_count(line.output_length),
        at=at / 1e3 if isinstance(at, int | float) and not isinstance(at, bool) else None,
    )


def _block_of(number: int) -> BlockHash:
    """Spread an id over the range of hashes, which sampling relies on."""
    block: BlockHash = xxh3_64_intdigest((number % 2**64).to_bytes(8, "little"))
    return block


def _output_of(line: _Line) -> int | None:
    usage = line.usage if isinstance(line.usage, dict) else {}
    held: Sequence[Any] = (line.output_tokens, usage.get("completion_tokens"), usage.get("output_tokens"))
    return next((count for value in held if (count := _count(value)) is not None), None)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _seconds(timestamp: Any) -> float | None:
    """Read a time: ISO 8601, or a number of seconds, ms, us or ns, which its size tells."""
    if isinstance(timestamp, str):
        return _seconds_of_text(timestamp)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not abs(timestamp) < 1e20:  # noqa: PLR2004
        return None
    steps: tuple[tuple[float, float], ...] = (
        (_NANOSECONDS_ABOVE, 1e9),
        (_MICROSECONDS_ABOVE, 1e6),
        (_MILLISECONDS_ABOVE, 1e3),
    )
    return timestamp / next((unit for above, unit in steps if timestamp > above), 1.0)


def _seconds_of_text(text: str) -> float | None:
    readers: tuple[Callable[[str], float], ...] = (float, _iso)
    for reader in readers:
        try:
            return reader(text[:64])
        except (ValueError, OverflowError):
            continue
    return None


def _iso(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
