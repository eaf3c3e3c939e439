"""Bodies cut out of a message by hand are what a parser finds there."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.exchange_messages import Event, Kind, Message
from ext_proc.wire import codec
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest

TAILS = {
    "nothing": b"",
    "empty_metadata": b"\x42\x00",
    "metadata": b"\x42\x07\x0a\x05\x0a\x01a\x12\x00",
    "another_body": b"\x22\x03\x0a\x01z",
    "headers": b"\x12\x00",
}


def body_message(body: bytes, *, end: bool) -> bytes:
    """Serialise a request body as a data plane does."""
    request = ProcessingRequest()
    request.request_body.body = body
    request.request_body.end_of_stream = end
    return request.SerializeToString()


def parsed(message: bytes) -> Event | type[DecodeError] | None:
    """Decode without the short cut: a protocol buffer may begin with any unknown field."""
    return outcome(b"\x9a\x06\x00" + message)


def outcome(message: bytes) -> Event | type[DecodeError] | None:
    """Decode, with the error as a value."""
    try:
        return codec.decode(message)
    except DecodeError:
        return DecodeError


@pytest.mark.parametrize("tail", ["nothing", "empty_metadata"])
@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_097_152], ids=str)
def test_a_body_of_any_length_is_cut_out_whole(size: int, tail: str) -> None:
    """Envoy's messages need no parser, whether their lengths take one, two, three or four bytes to write."""
    body = b"x" * size
    cut = codec._slice_body(body_message(body, end=True) + TAILS[tail])
    assert cut == Message(Kind.REQUEST_BODY, body, end_of_stream=True)


@given(st.binary(max_size=300), st.booleans(), st.sampled_from(sorted(TAILS)))
def test_a_cut_body_equals_a_parsed_one(body: bytes, end: bool, tail: str) -> None:
    """Whatever follows the body, the result is the parser's."""
    message = body_message(body, end=end) + TAILS[tail]
    assert outcome(message) == parsed(message)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_damaged_message_is_judged_by_the_parser(body: bytes, data: st.DataObject) -> None:
    """A message cut short or with a byte changed gives what the parser gives, its error included."""
    message = bytearray(body_message(body, end=True))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(message[: data.draw(st.integers(0, len(message)))])
    assert outcome(damaged) == parsed(damaged)
