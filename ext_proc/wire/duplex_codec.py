"""The messages of full duplex: ProcessingRequest bytes → event, piece of a body → ProcessingResponse bytes.

Bodies are cut out of messages and framed by hand: of an answer that passes, no byte is parsed.
"""

from __future__ import annotations

import functools
from typing import Final

from ext_proc.core.duplex_messages import DuplexEvent, Pass, ResponseHeaders
from ext_proc.core.exchange_messages import Kind, Message
from ext_proc.core.names import ANSWER_HEADERS, FORWARDED
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.codec import decode, read_varint, served_by
from ext_proc.wire.framing import varint

_BODY_KINDS: Final = {0x22: Kind.REQUEST_BODY, 0x2A: Kind.RESPONSE_BODY}
"""First byte of a message that is a body: Envoy writes fields in order."""

_EMPTY_END: Final = b"\x02\x10\x01"
_PLAIN_END: Final = 4
_BODY_ENDS: Final = {kind: Message(kind, b"", True) for kind in _BODY_KINDS.values()}
"""The end of a body, which mostly comes by itself: what follows its tag, bytes up to the metadata, and the event."""

_BYTES_TAG: Final = 0x0A
_METADATA_TAG: Final = 0x42
_END_FLAG: Final = b"\x10\x01"
_ONE_BYTE: Final = 0x80
RESPONSE_HEADERS: Final = b"\x1a"
"""How the beginning of an answer begins."""


def decode_duplex(message: bytes) -> DuplexEvent | None:
    """Read a ProcessingRequest that is not the first of its stream, and no piece that `slice_piece` could cut out.

    None for a kind of message that is not known.

    Raises:
        google.protobuf.message.DecodeError: the bytes are no ProcessingRequest.
    """
    if message.startswith(RESPONSE_HEADERS):
        return _slice_response_headers(message) or _response_headers(ProcessingRequest.FromString(message))
    return decode(message)


def slice_piece(message: bytes) -> Message | None:
    """Cut the body out of a message laid out as Envoy does it; None for every other message.

    What follows the body may be the metadata that Envoy forwards, which says nothing that the headers did not.
    """
    kind = _BODY_KINDS.get(message[0]) if message else None
    if kind is None:
        return None
    if message.startswith(_EMPTY_END, 1) and (len(message) == _PLAIN_END or _is_metadata(message, _PLAIN_END)):
        return _BODY_ENDS[kind]
    return _cut(message, kind)


def _cut(message: bytes, kind: Kind) -> Message | None:
    size, inner = _length(message, 1)
    outer_end = inner + size
    if outer_end > len(message) or size == 0:
        return None
    if message[inner] != _BYTES_TAG:
        body_end, body, start = inner, b"", inner
    else:
        length, start = _length(message, inner + 1)
        body_end = start + length
        if body_end > outer_end:
            return None
        body = message[start:body_end]
    ends = body_end != outer_end
    if ends and message[body_end:outer_end] != _END_FLAG:
        return None
    if outer_end != len(message) and not _is_metadata(message, outer_end):
        return None
    return Message(kind, body, ends)


def _length(message: bytes, position: int) -> tuple[int, int]:
    """Read a varint as `read_varint` does; short ones without a loop."""
    if position + 1 < len(message):
        low, high = message[position], message[position + 1]
        if low < _ONE_BYTE:
            return low, position + 1
        if high < _ONE_BYTE:
            return low & 0x7F | high << 7, position + 2
    return read_varint(message, position)


def _is_metadata(message: bytes, position: int) -> bool:
    """Tell whether the metadata of a message is all that follows from a position on."""
    if message[position] != _METADATA_TAG:
        return False
    rest = len(message) - position - 2
    if 0 <= rest < _ONE_BYTE:  # tag and length, and most often nothing else
        return message[position + 1] == rest
    size, start = _length(message, position + 1)
    return start + size == len(message)


def _key(name: str) -> bytes:
    """Return the key of a header that is read.

    Nothing else looks like one: its tag is a line feed, which may stand neither in the name nor in the value of a
    header.
    """
    return b"\x0a" + bytes((len(name),)) + name.encode()


_STATUS: Final = _key(":status")
_TYPE: Final = _key("content-type")
_ENCODING: Final = _key("content-encoding")
_FORWARDED: Final = _key(FORWARDED)

_RAW_VALUE_TAG: Final = b"\x1a"
_STATUS_TAG: Final = b"\x1a\x03"
_STATUS_AT: Final = len(_STATUS + _STATUS_TAG)
"""What precedes the value of a header, and that of `:status`, which has three digits."""

_LONGEST_KEPT: Final = 1024
_ENDS: Final = {b"": False, b"\x18\x01": True}
"""What may follow the headers in their message: `end_of_stream`, left out where it is false."""


def _slice_response_headers(message: bytes) -> ResponseHeaders | None:
    """Read what is needed of headers laid out as Envoy does it; None for every other message."""
    size, inner = _length(message, 1)
    outer_end = inner + size
    if outer_end > len(message) or size == 0 or message[inner] != _BYTES_TAG:
        return None
    length, start = _length(message, inner + 1)
    end = start + length
    ends = _ENDS.get(message[end:outer_end]) if end <= outer_end else None
    if ends is None or (outer_end != len(message) and not _is_metadata(message, outer_end)):
        return None
    at = message.rfind(_STATUS, start, end)
    if at < 0 or not message.startswith(_STATUS_TAG, at + len(_STATUS)):
        return None
    status = message[at + _STATUS_AT : at + _STATUS_AT + 3]
    kind = _value(message, _TYPE, start, end)
    encoding = b"" if message.find(_ENCODING, start, end) < 0 else _value(message, _ENCODING, start, end)
    if kind is None or encoding is None:
        return None
    forwarded = message.find(_FORWARDED, start, end) >= 0
    metadata = message[outer_end:]
    if len(metadata) + len(kind) + len(encoding) <= _LONGEST_KEPT:
        return _headers_kept(status, kind, encoding, forwarded, ends, metadata)
    return _headers_of(status, kind, encoding, forwarded, ends, metadata)


def _value(message: bytes, key: bytes, start: int, end: int) -> bytes | None:
    """Return the value of the last header of a name, empty if there is none; None if it is laid out in another way."""
    found = message.rfind(key, start, end)
    if found < 0:
        return b""
    at = found + len(key)
    if not message.startswith(_RAW_VALUE_TAG, at) or at + 1 == len(message):
        return None
    length, begin = (message[at + 1], at + 2) if message[at + 1] < _ONE_BYTE else _length(message, at + 1)
    return message[begin : begin + length] if begin + length <= end else None


def _headers_of(
    status: bytes, kind: bytes, encoding: bytes, forwarded: bool, ends: bool, metadata: bytes
) -> ResponseHeaders:
    served = served_by(ProcessingRequest.FromString(metadata)) if metadata else None
    values = (value.decode("utf-8", "replace") for value in (status, kind, encoding))
    return _read_headers(*values, forwarded=forwarded, ends=ends, served=served)


_headers_kept: Final = functools.lru_cache(maxsize=1024)(_headers_of)
"""What is needed of headers, and what Envoy says of the endpoint, repeats from answer to answer."""


def _response_headers(request: ProcessingRequest) -> ResponseHeaders:
    values = {
        key: header.raw_value.decode("utf-8", "replace") or header.value
        for header in request.response_headers.headers.headers
        if (key := header.key.lower()) in ANSWER_HEADERS
    }
    get = values.get
    return _read_headers(
        get(":status", ""),
        get("content-type", ""),
        get("content-encoding", ""),
        forwarded=FORWARDED in values,
        ends=request.response_headers.end_of_stream,
        served=served_by(request),
    )


def _read_headers(
    status: str, kind: str, encoding: str, *, forwarded: bool, ends: bool, served: str | None
) -> ResponseHeaders:
    return ResponseHeaders(
        status=int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0,  # noqa: PLR2004
        content_type=kind.lower(),
        content_encoding=encoding.lower(),
        end_of_stream=ends,
        served=served,
        forwarded=forwarded,
    )


# Field numbers of ProcessingResponse, and of what is in it around a piece: BodyResponse.response, CommonResponse.
# body_mutation, BodyMutation.streamed_response, StreamedBodyResponse.body.
_OUTER: Final = {Kind.REQUEST_BODY: b"\x1a", Kind.RESPONSE_BODY: b"\x22"}
_INNER: Final = (b"\x1a", b"\x1a", b"\x0a")


def encode_piece(piece: Pass) -> bytes:
    """Write the answer that lets a piece of a body go on."""
    if not piece.body:
        return _EMPTY_ANSWERS[piece.kind, piece.end_of_stream]
    before = _before(piece.kind, len(piece.body), piece.end_of_stream)
    return b"".join((before, piece.body, _END_FLAG) if piece.end_of_stream else (before, piece.body))


def encode_passing(body: bytes) -> bytes:
    """Write the same for a piece in the middle of an answer."""
    return _before(Kind.RESPONSE_BODY, len(body), False) + body


@functools.lru_cache(maxsize=4096)
def _before(kind: Kind, size: int, ends: bool) -> bytes:
    """Return what stands before a piece of so many bytes."""
    before = b"\x0a" + varint(size) if size else b""
    length = len(before) + size + (len(_END_FLAG) if ends else 0)
    for tag in (*_INNER, _OUTER[kind]):
        before = tag + varint(length) + before
        length += len(tag) + len(varint(length))
    return before


_EMPTY_ANSWERS: Final = {
    (kind, ends): _before(kind, 0, ends) + (_END_FLAG if ends else b"") for kind in _OUTER for ends in (False, True)
}
