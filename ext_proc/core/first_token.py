"""Tells from the pieces of an event stream when the engine has generated something."""

from __future__ import annotations

import enum
import re

from ext_proc.core.model import GENERATING, InferenceRequest

_FIELDS = (b":", b"data", b"event", b"id", b"retry")
"""How the lines of an event stream begin (HTML Living Standard, server-sent events)."""

_INSPECTED = 65_536
_BEFORE_TOKENS = rb"message_start|ping|response\.(?:created|queued|in_progress)"
_NAMED = re.compile(rb"event: ?(?:" + _BEFORE_TOKENS + rb")\s*$")
_TYPED = re.compile(rb'"type"\s*:\s*"(?:' + _BEFORE_TOKENS + rb')"')


class Piece(enum.Enum):
    """What a piece of an answer is."""

    TOKEN = enum.auto()
    PRELUDE = enum.auto()
    OTHER = enum.auto()


def has_first_token(request: InferenceRequest) -> bool:
    """Tell whether the answer's first piece will come when it is generated, not when all of it is."""
    return request.stream and request.operation in GENERATING


def read_piece(piece: bytes) -> Piece:
    """Tell a piece of an event stream with something generated from what engines send before, and from other answers.

    Comments, pings and the opening events of the Anthropic and the Responses API may come long before the first token.
    An error is JSON or text, a compressed answer cannot be read, half the name of a field is too little: all are OTHER.
    """
    lines = piece[:_INSPECTED].removeprefix(b"\xef\xbb\xbf").lstrip().splitlines()
    if not lines or not lines[0].startswith(_FIELDS):
        return Piece.OTHER
    named = False
    for line in lines:
        if line.startswith(b"event"):
            named = _NAMED.match(line) is not None
            if not named:
                return Piece.TOKEN
        elif line.startswith(b"data") and not named and not _TYPED.search(line):
            return Piece.TOKEN
        elif not line:
            named = False
    return Piece.PRELUDE
