"""What a transport carries: message bytes in, answer bytes out; the core of a stream is synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import grpc
import msgspec

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # A buffered body may be twice Envoy's buffer limit; the library's 4 MiB would refuse it.
    ("grpc.max_receive_message_length", -1),
    # Envoy may ping often; the defaults answer with GOAWAY too_many_pings and cut running streams.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would each get a part of the connections, and neither would notice.
    ("grpc.so_reuseport", 0),
    # Streams that wait to be taken; beyond 1,000 the library would refuse some at random.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)
"""Channel arguments of a server, whatever transport it uses (grpc/impl/channel_arg_names.h)."""

Stream = TypeVar("Stream")

FAULT: Final = "internal error"
"""What a peer is told when a session raised; the rest is not its business."""


class Later(msgspec.Struct, frozen=True, gc=False):
    """What to do if nothing was said to the peer for so many seconds: ask for a reply that answers no message."""

    seconds: float
    ask: Callable[[], Reply | Awaitable[Reply]]


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What to do after a message.

    Attributes:
        message: the answer's bytes; None sends nothing.
        finished: True to end the stream with `status` after the answer.
        status: gRPC status of a finished stream.
        details: text that goes with a status other than OK.
        optional: True if the peer loses nothing should the stream end in good order before its next message; heeded
            from the second answer of a stream on.
        more: answers to be written after `message`, in order; only where that is not None and the stream not finished.
        later: what to do if nothing is said within a time, whatever messages come that are answered by `NOTHING`.
        then: makes a second answer to the same message, to be awaited once this one is sent; the next message is not
            answered before that. A peer that half-closes meanwhile is gone, and gets nothing.
    """

    message: bytes | None = None
    finished: bool = False
    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    optional: bool = False
    more: tuple[bytes, ...] = ()
    later: Later | None = None
    then: Callable[[], Awaitable[Reply]] | None = None


NOTHING: Final = Reply()
"""Says nothing, and leaves as it is what was to be done later."""

Answer: TypeAlias = Reply | bytes | Awaitable[Reply]
"""What to do after a message, at once or when it is known.

Bytes are an answer of which nobody needs to know whether it was written, so that it may go out with the next read.
"""


class Session(Protocol):
    """The server's side of one gRPC stream; a unary call is a stream of one message."""

    def receive(self, message: bytes) -> Answer:
        """Take one message; an answer that must wait is awaited by the transport."""

    def close(self, *, delivered: bool) -> Reply:
        """End, however the stream ended; `delivered` tells whether the last answer was written, and none is awaited.

        The reply is sent if the peer half-closed in good order, and dropped otherwise.
        """


class Method(NamedTuple):
    """A gRPC method and what opens its streams."""

    service: str
    name: str
    open: Callable[[], Session]


class Transport(Protocol):
    """Carries the streams of some methods, on the running event loop."""

    name: str

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on `ip:port` or `unix:/path`; returns the port, or 0 where that is impossible.

        Args:
            address: where.
            credentials: what to prove ourselves with; None encrypts nothing.
        """

    async def start(self) -> None:
        """Begin to take streams; all addresses are listened on by then."""

    async def stop(self, grace: float) -> None:
        """Take no further streams, end the optional ones, and cut those that still run after `grace` seconds."""


class Waiting(Generic[Stream]):
    """The streams whose next message is optional, until somebody ends them all.

    Args:
        end: ends one in good order.
    """

    def __init__(self, end: Callable[[Stream], None]) -> None:
        self._end = end
        self._streams: set[Stream] = set()
        self._ended = False

    def add(self, stream: Stream) -> None:
        """Remember a stream; one that comes too late ends at once."""
        if self._ended:
            self._end(stream)
        else:
            self._streams.add(stream)

    def discard(self, stream: Stream) -> None:
        """Forget a stream, known or not."""
        self._streams.discard(stream)

    def end(self) -> None:
        """End them all."""
        self._ended = True
        streams, self._streams = self._streams, set()
        for stream in streams:
            self._end(stream)


def report_fault(error: BaseException) -> None:
    """Hand an error of a session to the event loop's exception handler: it must not end the server."""
    context = {"message": "a gRPC stream failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
