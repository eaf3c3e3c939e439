"""Finds what an engine says of tokens in the pieces of an answer, however they are split, and keeps little of them."""

from __future__ import annotations

import re
from typing import Final

from ext_proc.core.model import Usage

_ERROR: Final = b'"error"'
_ERROR_WORD: Final = b"error"
_FAILED_RESPONSE: Final = b"response.failed"

_LONGEST_USAGE: Final = 4096
_SEAM: Final = 48
"""Bytes kept of each piece, since what is looked for may begin in one and end in the next."""

_BEGINNING: Final = 2048
_END: Final = 16_384
"""Bytes of an event stream that are looked through at its beginning and, about, at its end."""

_ID_WITHIN: Final = 16_384
"""An answer gives its id at its beginning."""

_ENDING: Final = 64
"""Bytes of a JSON answer in which its last bracket stands, whatever white space follows it."""

_CLOSING: Final = {b"{": b"}", b"[": b"]"}

_USAGE: Final = b'"usage"'
_META_INFO: Final = b'"meta_info"'
"""In a JSON string the quotes would be escaped, so generated text cannot be mistaken for it; the second is SGLang's."""

_OPENING = re.compile(rb'"(?:usage|meta_info)"\s*:\s*')
_COUNT = re.compile(rb'"(\w+)"\s*:\s*(\d{1,9})\s*[,}]')
_NAMED_ERROR: Final = rb'"error"\s*:\s*(?:\{\s*"|"[^"]|[t1-9\[])'
_KIND_ERROR: Final = rb'\{\s*"(?:type|object)"\s*:\s*"error"'
_FAILED = re.compile(rb"[\r\n]data:\s*(?:\{[^{}\r\n]*" + _NAMED_ERROR + rb"|" + _KIND_ERROR + rb")")
_FAILED_CHOICE = re.compile(rb'"finish_reason"\s*:\s*"error"')
_FAILED_LINE = re.compile(rb"[\r\n](?:event: ?(?:error|response\.failed)|error: ?\{)")
"""An error in an event stream: a field of an event or all of it, how the answer ended, or a line of that name.

Nothing of it is found within what an answer repeats of its request: an engine must not look ill because of a client.
"""

_LAST_WORDS: Final = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")
_LAST_LINE = re.compile(rb"[\r\n](?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete)))")
"""The event behind which a client need not read on; some leave then, before the end of the stream has come."""

_FAILED_JSON = re.compile(rb"\s*(?:\{\s*" + _NAMED_ERROR + rb"|" + _KIND_ERROR + rb")")
_STATUS = re.compile(rb'"(?:code|status|status_code)"\s*:\s*"?([45]\d\d)"?\s*[,}]')
_CLIENTS_FAULT = re.compile(rb'"(?:invalid_request_error|BadRequestError|not_found_error|context_length_exceeded)"')
_OVERLOAD = re.compile(rb'"(?:overloaded_error|rate_limit_error|rate_limit_exceeded)"')
_ERROR_WITHIN: Final = 1024
"""Bytes of an error that are looked through for what it says of itself."""

_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w-]{1,128})"')

_SHARED = {b"prompt_tokens": "prompt", b"completion_tokens": "completion", b"cached_tokens": "cached"}
_RESPONSES = {**_SHARED, b"input_tokens": "prompt", b"output_tokens": "completion"}
_ANTHROPIC = {
    **_SHARED,
    b"input_tokens": "anthropic_input",
    b"output_tokens": "anthropic_output",
    b"cache_read_input_tokens": "anthropic_cached",
    b"cache_creation_input_tokens": "anthropic_created",
}
_DETAILS = b'_tokens_details"'
"""Two APIs share the names of their counts; only OpenAI's Responses adds details."""

MOST_TOKENS: Final = 10_000_000
"""A count above this is nonsense of the engine, and as good as none."""


class AnswerScan:
    """Reads an answer of the OpenAI or the Anthropic API piece by piece, as an event stream or as JSON.

    Of an event stream only the beginning and the end are looked at, where counts and errors stand; so a piece costs
    next to nothing, however many there are.

    Args:
        events: True for an event stream.
        wants_id: True for a response object, whose id is looked for too; it repeats the metadata and the tools of its
            request, and has no choices.

    Attributes:
        failed: the status that an error in the answer names, 1 if it names none; 0 without an error.
        has_ended: whether the last event of a stream came, behind which clients may leave.
        response_id: id of the response object.
    """

    __slots__ = (
        "_complaint",
        "_counts",
        "_early",
        "_echoes",
        "_events",
        "_first",
        "_head",
        "_left",
        "_rest",
        "_size",
        "_tail",
        "_window",
        "failed",
        "has_ended",
        "response_id",
    )

    def __init__(self, *, events: bool, wants_id: bool = False) -> None:
        self.failed = 0
        self.has_ended = False
        self._complaint = b""
        self.response_id = ""
        self._events = events
        self._echoes = wants_id
        self._early = True
        self._head: bytes | None = b"" if wants_id else None
        self._left = _BEGINNING
        self._rest = b"\n"
        self._window: list[bytes] = []
        self._size = 0
        self._counts: dict[str, int] = {}
        self._first = self._tail = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece; an empty one, as the last of a body often is, says nothing."""
        if not piece:
            return
        if not self._events:
            self._feed_json(piece)
            return
        if self._early:
            self._feed_early(piece)
            return
        self._window.append(piece)
        self._size += len(piece)
        if self._size > 2 * _END:
            self._trim()

    def _feed_json(self, piece: bytes) -> None:
        """Take a piece of an answer that is no stream; most often it is all of it."""
        if self._head is not None:
            self._look_for_id(piece)
        if not self._first:
            self._first = piece.lstrip()[:1]
        if len(self._complaint) < _ERROR_WITHIN:
            self._complaint += piece[:_ERROR_WITHIN]
            self.failed = 1 if _ERROR in self._complaint and _FAILED_JSON.match(self._complaint) else 0
        self._tail = (self._tail + piece)[-_ENDING:] if len(piece) < _ENDING else piece[-_ENDING:]
        text = self._rest + piece
        at = _place(text, 0)
        self._rest = text[-_SEAM:] if at < 0 else self._read(text, at)

    def _feed_early(self, piece: bytes) -> None:
        """Take a piece of the beginning of a stream."""
        if self._head is not None:
            self._look_for_id(piece)
        if self._left > 0:
            self._left -= len(piece)
            self._look(piece)
        else:
            self._window.append(piece)
            self._size += len(piece)
            self._trim()
        self._early = self._left > 0 or self._head is not None

    def _trim(self) -> None:
        """Keep what may be the end, once there is enough of it."""
        window, size, dropped = self._window, self._size, 0
        while size - len(window[dropped]) >= _END:
            size -= len(window[dropped])
            dropped += 1
        if dropped:
            self._rest = window[dropped - 1][-1:]  # what else it ended with does not go on in what is kept
            del window[:dropped]
        if len(window) == 1 and size > _END:
            window[0] = window[0][-_END:]
            size = _END
            self._rest = b""
        self._size = size

    def finish(self) -> None:
        """Note that no further piece comes."""
        if self._window:
            end = b"".join(self._window)
            self._window.clear()
            self._size = 0
            self._look(end)
        if self.failed:
            self.failed = _status(self._complaint)

    def _look(self, piece: bytes) -> None:
        """Look for everything in a part of a stream."""
        text = self._rest + piece
        if any(word in text for word in _LAST_WORDS):
            self.has_ended = self.has_ended or _LAST_LINE.search(text) is not None
        if self.failed:
            if len(self._complaint) < _ERROR_WITHIN:
                self._complaint += piece[:_ERROR_WITHIN]
        else:
            found = _find_failure(text, echoes=self._echoes)
            if found is not None:
                self.failed = 1
                self._complaint = text[found.start() : found.start() + _ERROR_WITHIN]
        at = _place(text, 0)
        self._rest = text[-_SEAM:] if at < 0 else self._read(text, at)

    @property
    def is_cut(self) -> bool:
        """Whether a JSON answer does not end as it begins: its engine promised too few bytes."""
        closing, last = _CLOSING.get(self._first), self._tail.rstrip()[-1:]
        return closing is not None and last not in (b"", closing)

    @property
    def usage(self) -> Usage:
        """What was found; Anthropic counts cached tokens, read and written, beside its input tokens, OpenAI among."""
        get = self._counts.get
        uncached = get("anthropic_input")
        if uncached is None:
            return Usage(get("prompt"), get("completion"), get("cached"))
        cached = get("anthropic_cached")
        return Usage(uncached + (cached or 0) + get("anthropic_created", 0), get("anthropic_output"), cached)

    def _read(self, text: bytes, at: int) -> bytes:
        """Read every usage object from a place on; returns what the next piece may go on with."""
        while at >= 0:
            opening = _OPENING.match(text, at)
            start = opening.end() if opening else len(text)
            if start >= len(text):
                return _tail(text, at)
            if text[start] != ord("{"):
                at = _place(text, start)
                continue
            end = _end_of_object(text, start)
            if end >= 0:
                self._note(text[start:end])
            elif len(text) - at < _LONGEST_USAGE:
                return text[at:]
            else:  # no usage is that long, and what stands in it is none of the answer's
                end = start + _LONGEST_USAGE
            at = _place(text, end)
        return text[-_SEAM:]

    def _note(self, usage: bytes) -> None:
        """Keep the last count of each kind, since an answer may repeat its own; but a 0 replaces nothing."""
        names = _RESPONSES if _DETAILS in usage else _ANTHROPIC
        counts = self._counts
        if names is _RESPONSES:  # what came before was a client's own object of that name, in its metadata
            counts.pop("anthropic_input", None)
        for field, digits in _COUNT.findall(usage):
            name = names.get(field)
            if name is not None:
                count = int(digits)
                if count <= MOST_TOKENS and (count or name not in counts):
                    counts[name] = count

    def _look_for_id(self, piece: bytes) -> None:
        head = (self._head or b"") + piece[:_ID_WITHIN]
        found = _ID.search(head)
        if found:
            self.response_id = found[1].decode()
        self._head = None if found or len(head) >= _ID_WITHIN else head


def _find_failure(text: bytes, *, echoes: bool) -> re.Match[bytes] | None:
    """Find an error; plain searches go first, since they are fast and nearly always enough."""
    found = None
    if _ERROR in text:
        found = _FAILED.search(text) or (None if echoes else _FAILED_CHOICE.search(text))
    if found is None and (_ERROR_WORD in text or _FAILED_RESPONSE in text):
        found = _FAILED_LINE.search(text)
    return found


def _place(text: bytes, start: int) -> int:
    usage, meta_info = text.find(_USAGE, start), text.find(_META_INFO, start)
    return meta_info if usage < 0 or 0 <= meta_info < usage else usage


def _status(complaint: bytes) -> int:
    """Read from an error whose fault it is: a status, or the name of the kind; 1 if it does not say."""
    found = _STATUS.search(complaint)
    if found:
        return int(found[1])
    if _CLIENTS_FAULT.search(complaint):
        return 400
    return 429 if _OVERLOAD.search(complaint) else 1


def _end_of_object(text: bytes, start: int) -> int:
    """Return where a usage object ends, which has no braces in its texts; -1 if it does not end here."""
    end, depth = start, 0
    while end < start + _LONGEST_USAGE:
        close = text.find(b"}", end, start + _LONGEST_USAGE) + 1
        if not close:
            return -1
        depth += text.count(b"{", end, close) - 1
        if depth == 0:
            return close
        end = close
    return -1


def _tail(text: bytes, at: int) -> bytes:
    """Return what began at a place and is not over; nothing but the seam if it is longer than any usage."""
    return text[at:] if len(text) - at < _LONGEST_USAGE else text[-_SEAM:]
