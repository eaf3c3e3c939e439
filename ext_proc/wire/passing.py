"""Answers pieces in the middle of an engine's answer by what is known of others of their length, parsing nothing."""

from __future__ import annotations

from typing import Final, TypeAlias

from ext_proc.core.duplex_messages import LONGEST_UNSEEN
from ext_proc.wire.codec import read_varint
from ext_proc.wire.duplex_codec import encode_passing, slice_piece

_RESPONSE_BODY: Final = b"\x2a"
_END: Final = b"\x2a\x02\x10\x01"
"""How the last message of a body begins if it is empty, as it mostly is."""

_LONGEST: Final = LONGEST_UNSEEN + 1024
"""Bytes of a message; so many layouts are kept at most. What is beside the body is metadata, and mostly empty."""

_Layout: TypeAlias = tuple[bytes, int, int, bytes, bytes]
"""What precedes the body, where it begins and ends, what follows but for the contents; what precedes the answer's."""


class Passing:
    """Cuts the body out of a message and frames it as the answer; the first piece of each length shows how.

    This is what most messages of a busy server are, and each finds the caches cold: it must touch few things.
    """

    __slots__ = ("_layouts",)

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}

    def answer(self, message: bytes) -> tuple[bytes, bytes] | None:
        """Return body and answer of a ProcessingRequest that is such a piece and not too long; None for all others."""
        layout = self._layouts.get(len(message))
        if layout is not None:
            head, start, end, tail, before = layout
            if message.startswith(head) and message.startswith(tail, end):
                body = message[start:end]
                return body, before + body
        if not message.startswith(_RESPONSE_BODY) or message.startswith(_END) or len(message) > _LONGEST:
            return None
        return self._learn(message)

    def _learn(self, message: bytes) -> tuple[bytes, bytes] | None:
        """Take a piece of a length that is new, or laid out in another way than the last one of its length."""
        piece = slice_piece(message)
        if piece is None or piece.end_of_stream or not 0 < len(piece.body) <= LONGEST_UNSEEN:
            return None
        body, answer = piece.body, encode_passing(piece.body)
        size, start = read_varint(message, read_varint(message, 1)[1] + 1)
        end = start + size
        rest = read_varint(message, end + 1)[1] if end < len(message) else end
        self._layouts[len(message)] = message[:start], start, end, message[end:rest], answer[: -len(body)]
        return body, answer
