"""What the tests of the gRPC server share: servers, sessions that keep a tally, and conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from ext_proc.wire.server import GrpcServer
from ext_proc.wire.transport import Method, Reply, Session

TRANSPORTS = ("queue", "aio")
SERVICE = "kvpicker.test"
PATH = f"/{SERVICE}/Talk"

Answer = Callable[[bytes], Reply | Awaitable[Reply]]


class Tally:
    """Opens sessions and notes how each of them ended."""

    def __init__(self, answer: Answer | None = None, inner: Callable[[], Session] | None = None) -> None:
        self.opened = 0
        self.ends: list[bool] = []
        self.heard: list[bytes] = []
        self._answer = answer
        self._inner = inner

    @property
    def running(self) -> int:
        """Count the sessions that are open."""
        return self.opened - len(self.ends)

    def method(self) -> Method:
        """Make the method whose sessions are counted."""
        return Method(SERVICE, "Talk", self.open)

    def open(self) -> Session:
        """Open a session."""
        self.opened += 1
        return _Counted(self, self._inner() if self._inner else _Answering(self._answer or Reply))


class _Answering:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def receive(self, message: bytes) -> Reply | Awaitable[Reply]:
        return self._answer(message)

    def close(self, *, delivered: bool) -> Reply:
        return Reply(b"bye")


class _Counted:
    def __init__(self, tally: Tally, inner: Session) -> None:
        self._tally = tally
        self._inner = inner

    def receive(self, message: bytes) -> Reply | Awaitable[Reply]:
        self._tally.heard.append(message)
        return self._inner.receive(message)

    def close(self, *, delivered: bool) -> Reply:
        self._tally.ends.append(delivered)
        return self._inner.close(delivered=delivered)


@asynccontextmanager
async def serving(
    methods: Iterable[Method], transport: str, *options: tuple[str, int], address: str = "127.0.0.1:0"
) -> AsyncIterator[grpc.aio.Channel]:
    """Run a server and connect to it; `options` are those of the channel."""
    server = GrpcServer(methods, [address], transport)
    await server.start()
    try:
        # A pool of its own, or channels of one test would share connections.
        chosen = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options)
        async with grpc.aio.insecure_channel(server.addresses[0], options=chosen) as channel:
            yield channel
    finally:
        await server.stop(0)


async def converse(channel: grpc.aio.Channel, *messages: bytes, method: str = PATH) -> list[bytes]:
    """Send messages on one stream, half-close and return all answers."""
    call = begin(channel, method)
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [answer async for answer in call]


def begin(channel: grpc.aio.Channel, method: str = PATH, timeout: float | None = None) -> Any:
    """Open a stream; `timeout` is the deadline that goes out with it."""
    return channel.stream_stream(method)(timeout=timeout)


def faults() -> list[str]:
    """Note the kinds of the errors that reach the event loop, from here to the end of the test."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: heard.append(type(context["exception"]).__name__)
    )
    return heard
