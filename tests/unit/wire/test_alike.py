"""Messages that are made alike, against the same messages as they came."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ext_proc.core.exchange_messages import RequestHeaders
from ext_proc.core.wishes import NO_NAMES, HeaderNames, names_of
from ext_proc.wire import codec
from ext_proc.wire.alike import alike
from ext_proc.wire.codec import decode
from tests.unit.wire.picking import headers_message

UUID = "0b1f9f39-6c5c-4d0b-9a67-2f5b0a9f3c11"
NAMES = ("content-length", "traceparent", "x-request-id", "content-type", "x-tenant", "content-lengthy", "x")
VALUES = st.one_of(
    st.sampled_from([UUID, UUID[:-1], "0", "4096", "é" * 18, "a" * 127, "a" * 128, "x\n\x0econtent-length"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40),
)


@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6, unique_by=lambda header: header[0]),
    names=st.sampled_from([NO_NAMES, names_of("x-tenant"), names_of("content-length"), names_of("x-request-id")]),
)
@example(headers=[("content-length", "4096"), ("x-request-id", UUID)], names=names_of("content-length"))
@example(headers=[("x-request-id", UUID)], names=names_of("x-request-id"))
def test_what_is_kept_is_what_a_parser_reads(headers: list[tuple[str, str]], names: HeaderNames) -> None:
    """Of every header that is read, whatever stands before it and behind it, and of a tenant in an odd place too."""
    message = headers_message("/v1/chat/completions", *headers)
    assert decode(message, names) == codec._decode(message, names)


@given(message=st.binary(max_size=60))
@example(b"\x0a\x0econtent-length\x1a")
@example(b"\x0a\x0econtent-length\x1a\x05abc")
@example(b"\x0a\x0cx-request-id\x1a\x24abc")
def test_any_bytes_keep_their_length(message: bytes) -> None:
    """What is cut off is left alone."""
    for begin in (b"", b"\x0a\x0econtent-length\x1a", b"\x0a\x0cx-request-id\x1a\x24"):
        made, _ = alike(begin + message, NO_NAMES)
        assert len(made) == len(begin + message)


@pytest.mark.parametrize("name", ["content-length", "traceparent"])
def test_what_differs_from_request_to_request_is_read_once(name: str) -> None:
    """Two requests of a client are one message, each with its own id."""
    first, second = (
        decode(headers_message("/v1/alike", (name, value), ("x-request-id", identity)))
        for value, identity in (("4096", UUID), ("1024", UUID.replace("0", "1")))
    )
    assert isinstance(first, RequestHeaders)
    assert isinstance(second, RequestHeaders)
    assert (first.request_id, second.request_id) == (UUID, UUID.replace("0", "1"))
    assert first.head is second.head
    assert msgspec.structs.replace(first, request_id="") == msgspec.structs.replace(second, request_id="")
