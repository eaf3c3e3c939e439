"""Pieces of bodies, cut out and framed by hand, against parsers that know the messages."""

from __future__ import annotations

import contextlib
import re

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as TypedResponse
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ext_proc.core.duplex_messages import Pass, ResponseHeaders
from ext_proc.core.exchange_messages import Kind, Message
from ext_proc.core.names import ANSWER_HEADERS, FORWARDED, LB_NAMESPACE, SERVED
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.duplex_codec import decode_duplex, encode_piece, slice_piece

KINDS = st.sampled_from([Kind.REQUEST_BODY, Kind.RESPONSE_BODY])
BODIES = st.one_of(
    st.binary(max_size=300), st.sampled_from([b"a" * size for size in (127, 128, 16_383, 16_384, 62_000)])
)


def message_of(kind: Kind, body: bytes, *, end: bool, metadata: bool) -> bytes:
    """Serialise a piece as Envoy does."""
    request = ProcessingRequest()
    part = getattr(request, kind.name.lower())
    part.SetInParent()
    part.body, part.end_of_stream = body, end
    if metadata:
        request.metadata_context.filter_metadata[LB_NAMESPACE].update({SERVED: "10.0.0.1:8000"})
    return request.SerializeToString()


@given(kind=KINDS, body=BODIES, end=st.booleans(), metadata=st.booleans())
def test_a_piece_is_cut_out_as_a_parser_would(kind: Kind, body: bytes, *, end: bool, metadata: bool) -> None:
    """With its end, whatever metadata follows it, and without a look at a byte of it."""
    message = message_of(kind, body, end=end, metadata=metadata)
    piece = slice_piece(message)
    assert piece == Message(kind, body, end) or (piece is None and not body and not end)
    decoded = slice_piece(message) or decode_duplex(message)
    assert isinstance(decoded, Message)
    assert (decoded.kind, decoded.body, decoded.end_of_stream) == (kind, body, end)


@given(message=st.binary(max_size=40))
@example(b"\x2a")
@example(b"\x2a\x80")
@example(b"\x2a\x03\x0a\x02a")
@example(b"\x2a\x02\x10\x01\x42")
@example(b"\x2a\x04\x0a\x7fab")
def test_what_is_no_piece_is_left_to_the_parser(message: bytes) -> None:
    """A slice that is returned says what the parser says, and nothing raises."""
    for begin in (b"", b"\x22", b"\x2a"):
        piece = slice_piece(begin + message)
        if piece is not None:
            request = ProcessingRequest.FromString(begin + message)
            part = getattr(request, piece.kind.name.lower())
            assert (part.body, part.end_of_stream) == (piece.body, piece.end_of_stream)


@given(kind=KINDS, body=BODIES, end=st.booleans(), view=st.booleans())
def test_a_piece_is_framed_as_another_parser_reads_it(kind: Kind, body: bytes, *, end: bool, view: bool) -> None:
    """As the streamed response of a body of its kind."""
    message = encode_piece(Pass(kind, memoryview(body) if view else body, end))
    response = TypedResponse.parse(message)
    part = response.request_body if kind is Kind.REQUEST_BODY else response.response_body
    assert part is not None
    assert part.response is not None
    assert part.response.body_mutation is not None
    streamed = part.response.body_mutation.streamed_response
    assert streamed is not None
    assert (streamed.body, streamed.end_of_stream) == (body, end)


@pytest.mark.parametrize("served", ["10.0.0.12:8000", None])
def test_headers_of_an_answer_are_read(served: str | None) -> None:
    """The status stands in `:status`, as bytes (G22); the endpoint that served in the metadata."""
    request = ProcessingRequest()
    values = {
        ":status": b"503",
        "content-type": b"Text/Event-Stream; charset=utf-8",
        "x-envoy-upstream-service-time": b"4",
    }
    entries = [HeaderValue(key=key, raw_value=value) for key, value in values.items()]
    request.response_headers.headers.headers.extend(entries)
    request.response_headers.end_of_stream = True
    if served:
        request.metadata_context.filter_metadata[LB_NAMESPACE].update({SERVED: served})
    assert decode_duplex(request.SerializeToString()) == ResponseHeaders(
        status=503, content_type="text/event-stream; charset=utf-8", end_of_stream=True, served=served, forwarded=True
    )


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=140)
NAMES = st.one_of(st.sampled_from([*sorted(ANSWER_HEADERS), "xcontent-type", ":status2"]), st.text("a:-s", max_size=20))
ENTRY = st.builds(HeaderValue, key=NAMES, raw_value=TEXT.map(str.encode), value=st.sampled_from(["", "", "text"]))
METADATA = st.dictionaries(
    st.sampled_from([LB_NAMESPACE, "other"]),
    st.sampled_from([{SERVED: "a:1"}, {SERVED: "a:2", "b": "c" * 1500}, {"b": "c"}]),
)


@given(entries=st.lists(ENTRY, max_size=6), ends=st.booleans(), metadata=METADATA, cut=st.integers(0, 30))
@example(entries=[], ends=False, metadata={}, cut=0)
def test_headers_of_an_answer_are_cut_out_as_a_parser_would(
    entries: list[HeaderValue], metadata: dict[str, dict[str, str]], cut: int, *, ends: bool
) -> None:
    """Whatever stands before, between and behind those that are read; what is cut off is no message."""
    request = ProcessingRequest()
    request.response_headers.headers.headers.extend(entries)
    request.response_headers.end_of_stream = ends
    for namespace, fields in metadata.items():
        request.metadata_context.filter_metadata[namespace].update(fields)
    values = {entry.key: entry.raw_value.decode() or entry.value for entry in entries}
    status = values.get(":status", "")
    message = request.SerializeToString()
    assert decode_duplex(message) == ResponseHeaders(
        status=int(status) if re.fullmatch("[0-9]{3}", status) else 0,
        content_type=values.get("content-type", "").lower(),
        content_encoding=values.get("content-encoding", "").lower(),
        end_of_stream=ends,
        served=metadata.get(LB_NAMESPACE, {}).get(SERVED),
        forwarded=FORWARDED in values,
    )
    if 0 < cut < len(message):
        with contextlib.suppress(DecodeError):
            decode_duplex(message[:-cut])


@pytest.mark.parametrize("status", [b"", b"abc", b"20", "٢٠٠".encode(), b"-10", b"99999"])
def test_a_status_that_is_none_is_zero(status: bytes) -> None:
    """Whatever stands there."""
    request = ProcessingRequest()
    request.response_headers.headers.headers.append(HeaderValue(key=":status", raw_value=status))
    assert decode_duplex(request.SerializeToString()) == ResponseHeaders()


def test_messages_of_other_kinds_are_left_alone() -> None:
    """A kind that is not known is None (G18), trailers are trailers."""
    assert decode_duplex(b"\x6a\x00") is None
    assert decode_duplex(b"\x32\x00") == Message(Kind.REQUEST_TRAILERS)
