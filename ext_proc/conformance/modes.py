"""The ways in which Envoy sends bodies, as the profiles of gateways use them."""

from __future__ import annotations

import enum
from typing import Final


class Mode(enum.StrEnum):
    """How the bodies of a request and its answer come.

    Attributes:
        LEAN: the request partly buffered, of the answer nothing.
        BUFFERED: the request buffered, of the answer nothing.
        STREAMED: both streamed, with an answer to each piece.
        DUPLEX: both in full duplex.
        ANY: the check has nothing to do with bodies.
    """

    LEAN = "lean"
    BUFFERED = "buffered"
    STREAMED = "streamed"
    DUPLEX = "duplex"
    ANY = "any"

    @property
    def request(self) -> int:
        """How the request body comes, as Envoy numbers it (ProcessingMode.BodySendMode)."""
        return _REQUEST[self]

    @property
    def response(self) -> int:
        """The same of the response body."""
        return self.request if self in (Mode.STREAMED, Mode.DUPLEX) else 0


_REQUEST: Final = {Mode.LEAN: 3, Mode.BUFFERED: 2, Mode.STREAMED: 1, Mode.DUPLEX: 4, Mode.ANY: 0}
"""BUFFERED_PARTIAL, BUFFERED, STREAMED, FULL_DUPLEX_STREAMED, NONE."""

ALL: Final = (Mode.LEAN, Mode.BUFFERED, Mode.STREAMED, Mode.DUPLEX)
WHOLE: Final = (Mode.LEAN, Mode.BUFFERED)
"""Envoy sends one message with the body, or with the beginning of it."""

SERIAL: Final = (Mode.LEAN, Mode.BUFFERED, Mode.STREAMED)
"""Envoy awaits an answer to each message before it sends the next."""

PIECES: Final = (Mode.STREAMED, Mode.DUPLEX)
DUPLEX: Final = (Mode.DUPLEX,)
NONE: Final = (Mode.ANY,)
"""The check has nothing to do with bodies and runs once."""
