"""Pieces that pass by what is known of their length, against the way that parses."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ext_proc.core.duplex_messages import LONGEST_UNSEEN, MOST_UNSEEN, Pass
from ext_proc.core.exchange_messages import Kind
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest
from ext_proc.wire.duplex_codec import encode_passing, encode_piece, slice_piece
from ext_proc.wire.passing import Passing
from tests.unit.core.test_duplex import USAGE
from tests.unit.wire.picking import CHAT, Picking
from tests.unit.wire.test_duplex_codec import message_of
from tests.unit.wire.test_duplex_session import answers, body_message, duplex_headers

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
PIECES = st.builds(
    message_of,
    st.sampled_from([Kind.REQUEST_BODY, Kind.RESPONSE_BODY]),
    st.one_of(
        st.binary(max_size=4),
        st.integers(0, LONGEST_UNSEEN + 5).map(lambda size: b"x" * size),
        st.sampled_from([b"a" * size for size in (125, 126, 127, 128, LONGEST_UNSEEN, LONGEST_UNSEEN + 1)]),
    ),
    end=st.booleans(),
    metadata=st.booleans(),
)


def expected(message: bytes) -> tuple[bytes, bytes] | None:
    """Answer a message as one that parses it would, if it is a piece in the middle of an answer."""
    piece = slice_piece(message)
    if piece is None or piece.kind is not Kind.RESPONSE_BODY or piece.end_of_stream:
        return None
    return (piece.body, encode_passing(piece.body)) if 0 < len(piece.body) <= LONGEST_UNSEEN else None


@given(messages=st.lists(st.one_of(PIECES, st.binary(max_size=8).map(lambda tail: b"\x2a" + tail)), max_size=20))
@example([b"", b"\x2a", b"\x2a\x80", b"\x2a\x03\x0a\x01\x2a", b"\x2a\x03\x0a\x01\x0a", b"\x2a\x02\x10\x01\x42"])
def test_pieces_pass_as_if_each_was_parsed(messages: list[bytes]) -> None:
    """Whatever was learned of messages before, and whatever is like them but no such piece."""
    passing = Passing()
    for message in messages * 2:
        assert passing.answer(message) == expected(message)


def test_messages_of_a_length_may_be_laid_out_in_two_ways() -> None:
    """Where one has metadata and the other a longer body, each is cut as it is."""
    passing = Passing()
    shown = message_of(Kind.RESPONSE_BODY, b"y" * 200, end=False, metadata=True)
    plain = message_of(Kind.RESPONSE_BODY, b"x" * (len(shown) - 6), end=False, metadata=False)
    ending = message_of(Kind.RESPONSE_BODY, b"z" * (len(shown) - 8), end=True, metadata=False)
    assert len(shown) == len(plain) == len(ending)
    empty, other = (plain + rest for rest in (b"\x42\x00", b"\x50\x01"))
    for message in (shown, plain, ending, shown, plain, empty, other, empty):
        assert passing.answer(message) == expected(message)
    assert expected(empty) is not None
    assert expected(other) is None


def test_few_layouts_are_kept() -> None:
    """Metadata of any length makes messages of any length, of which long ones go the long way."""
    passing = Passing()
    for size in range(0, 20_000, 3):
        request = ProcessingRequest()
        request.response_body.body = b"x" * 10
        request.metadata_context.filter_metadata["n"].update({"k": "m" * size})
        assert passing.answer(request.SerializeToString()) in {(b"x" * 10, encode_passing(b"x" * 10)), None}
    assert 0 < len(passing._layouts) <= 3072


def test_a_session_looks_at_some_of_the_pieces_that_pass() -> None:
    """All go on as they came, and the tokens are counted that an event tells of which nobody looked at by itself."""
    picking = Picking()
    session = picking.session(1)
    session.receive(duplex_headers())
    list(answers(session.receive(body_message(CHAT[:-1] + b',"stream":true}'))))
    headers = ProcessingRequest()
    for key, value in ((":status", b"200"), ("content-type", b"text/event-stream")):
        headers.response_headers.headers.headers.add(key=key, raw_value=value)
    session.receive(headers.SerializeToString())
    for number in range(3 * MOST_UNSEEN):
        piece = USAGE if number == MOST_UNSEEN // 2 else EVENT
        assert session.receive(message_of(Kind.RESPONSE_BODY, piece, end=False, metadata=False)) == encode_passing(
            piece
        )
        assert len(session._unseen or ()) == (number % (MOST_UNSEEN + 1) if number else 0)
    assert session.receive(message_of(Kind.RESPONSE_BODY, b"", end=True, metadata=False)) == encode_piece(
        Pass(Kind.RESPONSE_BODY, b"", True)
    )
    (outcome,) = picking.notes.all("finished")
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (9, 4)
    assert session._unseen is None
