"""What a transport carries: message bytes in, answer bytes out; the core of a stream is synchronous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import grpc


class Reply(NamedTuple):
    """What to do after a message.

    Attributes:
        message: the answer's bytes; None sends nothing.
        finished: True to end the stream with `status` after the answer.
        status: gRPC status of a finished stream.
        details: text that goes with a status other than OK.
    """

    message: bytes | None = None
    finished: bool = False
    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""


class Session(Protocol):
    """The server's side of one gRPC stream."""

    def receive(self, message: bytes) -> Reply | Awaitable[Reply]:
        """Take one message; an answer that must wait is awaited by the transport."""

    def close(self, *, delivered: bool) -> Reply:
        """End, however the stream ended; `delivered` tells whether the last answer was written.

        The reply is sent if the peer half-closed in good order, and dropped otherwise.
        """


class Method(NamedTuple):
    """A bidirectional gRPC method and what opens its streams."""

    service: str
    name: str
    open: Callable[[], Session]
