"""When an event stream has its first token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.first_token import Piece, read_piece

CHAT = b'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"Ri"}}]}\n\n'
CREATED = b'event: response.created\ndata: {"response":{"output":[]},"type":"response.created"}\n\n'
PROGRESS = b'event: response.in_progress\r\ndata: {"type": "response.in_progress"}\r\n\r\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Ri"}\n\n'
START = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
BLOCK = b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'


@pytest.mark.parametrize(
    "piece",
    [
        CHAT,
        CHAT[:4],
        CHAT[:9],
        b"\xef\xbb\xbf" + CHAT,
        b"\n" + CHAT,
        b": PROCESSING\n\n" + CHAT,
        b"id: 1\nretry: 1000\n" + CHAT,
        b"data:{}\n\n",
        b"data: [DONE]\n\n",
        CREATED + PROGRESS + DELTA,
        DELTA,
        START + BLOCK,
        BLOCK,
        b'data: {"type":"response.in_progress"}\n\n' + CHAT,
    ],
)
def test_something_generated_is_a_token(piece: bytes) -> None:
    """Any event that is no mere opening tells that the engine generates."""
    assert read_piece(piece) is Piece.TOKEN


@pytest.mark.parametrize(
    "piece",
    [
        b":\n\n",
        b": PROCESSING\n\n",
        b"retry: 1000\n\nid: 4\n\n",
        b'event: ping\ndata: {"type": "ping"}\n\n',
        CREATED,
        CREATED + PROGRESS,
        CREATED[:40],
        b'data: {"type":"response.queued"}\n\n',
        START,
    ],
)
def test_openings_comments_and_pings_are_no_tokens(piece: bytes) -> None:
    """What engines and gateways send while a request waits does not end the wait."""
    assert read_piece(piece) is Piece.PRELUDE


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b" \n",
        b'{"error":{"message":"data: no"}}',
        b"Internal Server Error",
        b"\x1f\x8b\x08\0",
        b"[1]",
        b"date: x",
        CHAT[:3],
    ],
)
def test_other_answers_tell_nothing(piece: bytes) -> None:
    """Errors, whole answers and compressed ones are no event streams."""
    assert read_piece(piece) is Piece.OTHER


@given(st.lists(st.sampled_from([CREATED, PROGRESS, START, b": wait\n\n"])), st.integers(0, len(CHAT)))
def test_the_first_token_is_seen_behind_any_opening(openings: list[bytes], cut: int) -> None:
    """However much came before in one piece, a token behind it counts as soon as the name of its field is whole."""
    piece = b"".join(openings) + CHAT[:cut]
    expected = Piece.TOKEN if cut >= len(b"data") else Piece.PRELUDE if openings else Piece.OTHER
    assert read_piece(piece) is expected
