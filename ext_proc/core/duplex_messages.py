"""What a duplex exchange takes and gives beside the messages of every exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from ext_proc.core.exchange_messages import Abort, Continue, Kind, Message, Refuse, RequestHeaders, Wait, WaitForTurn
from ext_proc.core.prompts.encodings import PLAIN

PIECE_BYTES: Final = 62_000
"""Bytes of a body in one answer, at most; Envoy takes 64 KiB with all that is around them."""

OF_RESPONSE: Final = frozenset({Kind.RESPONSE_HEADERS, Kind.RESPONSE_BODY, Kind.RESPONSE_TRAILERS})

MOST_UNSEEN: Final = 32
LONGEST_UNSEEN: Final = 2048
"""Pieces of an answer that pass before one is looked at, together with them, and bytes that each may have."""


class ResponseHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The beginning of an answer.

    Attributes:
        status: HTTP status; 0 if it is none.
        content_type: media type, as it was sent.
        content_encoding: how the body is compressed; empty if it is not.
        end_of_stream: True if no body follows.
        served: address of the endpoint that answers; None where Envoy does not tell.
        forwarded: True if Envoy says that it has this from an endpoint, and did not answer in its place.
        is_json: whether the body is JSON, or events with JSON in them, and can be read as it passes; made of the rest.
        is_stream: whether the body is a stream of events; made of the rest.
    """

    status: int = 0
    content_type: str = ""
    content_encoding: str = ""
    end_of_stream: bool = False
    served: str | None = None
    forwarded: bool = False

    is_json: bool = False
    is_stream: bool = False

    def __post_init__(self) -> None:
        """Tell once what the body is: headers that say the same are one object."""
        is_stream = self.content_type[: len(_EVENTS)].lower() == _EVENTS
        is_json = is_stream or _JSON.match(self.content_type) is not None
        msgspec.structs.force_setattr(self, "is_stream", is_stream)
        msgspec.structs.force_setattr(self, "is_json", is_json and self.content_encoding in PLAIN)


class Pass(msgspec.Struct, frozen=True, gc=False):
    """Let a piece of a body go on as it came; the last one ends the body."""

    kind: Kind
    body: bytes | memoryview
    end_of_stream: bool = False


_EVENTS: Final = "text/event-stream"
_JSON: Final = re.compile(r"application/(?:[\w.-]+\+)?json", re.IGNORECASE)
"""How media types begin, which are written in letters of any size."""

DuplexEvent: TypeAlias = RequestHeaders | ResponseHeaders | Message
DuplexAction: TypeAlias = Pass | Continue | Refuse | Abort | Wait | WaitForTurn


_ENDS: Final = {kind: (Pass(kind, b"", True),) for kind in (Kind.REQUEST_BODY, Kind.RESPONSE_BODY)}


def pieces(kind: Kind, body: bytes, *, end_of_stream: bool) -> Sequence[Pass]:
    """Cut a body, or a part of one, into pieces that Envoy takes; nothing for an empty part."""
    if not body:
        return _ENDS[kind] if end_of_stream else ()
    if len(body) <= PIECE_BYTES:
        return (Pass(kind, body, end_of_stream),)
    view = memoryview(body)
    last = (len(body) - 1) // PIECE_BYTES * PIECE_BYTES
    cut = [Pass(kind, view[at : at + PIECE_BYTES]) for at in range(0, last, PIECE_BYTES)]
    cut.append(Pass(kind, view[last:], end_of_stream))
    return cut
