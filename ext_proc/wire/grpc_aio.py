"""The transport over grpc.aio: raw bytes, read and write, the stream ended right after the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio
import msgspec

from ext_proc.wire.transport import (
    FAULT,
    NOTHING,
    OPTIONS,
    Answer,
    Later,
    Method,
    Reply,
    Session,
    Waiting,
    report_fault,
)

_Context: TypeAlias = Any  # grpc.aio.ServicerContext[bytes, bytes], which is generic in stubs only
_Handler: TypeAlias = Callable[[Any, _Context], Awaitable[None]]


_NOTICE_S = 1.0


class AioTransport:
    """Carries streams by the library's public interface."""

    name = "aio"

    def __init__(self, methods: Iterable[Method]) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        self._streams: set[asyncio.Task[Any]] = set()
        self._waiting: Waiting[_Ended] = Waiting(_end)
        self._server.add_generic_rpc_handlers(tuple(_handlers(methods, self._streams, self._waiting)))

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on `ip:port` or `unix:/path`; returns the port, or 0 where that is impossible."""
        try:
            if credentials is not None:
                return self._server.add_secure_port(address, credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError:
            return 0

    async def start(self) -> None:
        """Begin to take streams."""
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no further streams, end the optional ones, and cut those that still run after `grace` seconds."""
        self._waiting.end()
        await self._server.stop(grace)
        if self._streams:  # cut, but not all of them have noticed: from Python 3.13 on they do so later
            await asyncio.wait(self._streams, timeout=_NOTICE_S)


_Ended: TypeAlias = "asyncio.Future[None]"


def _end(stream: _Ended) -> None:
    if not stream.done():
        stream.set_result(None)


async def _second(answer: Awaitable[Reply], read: asyncio.Future[Any]) -> Reply | None:
    """Await an answer, or that the peer no longer waits for it: it may say so by nothing but its half-close."""
    read.add_done_callback(_heed)
    answering = asyncio.ensure_future(answer)
    try:
        await asyncio.wait((answering, read), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and read.result() is grpc.aio.EOF:
            return None
        return await answering
    finally:
        answering.cancel()


def _heed(read: asyncio.Future[Any]) -> None:
    """Take note of how a read ended: nobody may be left to ask for it."""
    if not read.cancelled():
        read.exception()


async def _read_optional(reading: asyncio.Future[Any], waiting: Waiting[_Ended]) -> Any:
    """Return the next message, or None once the stream is to end without it."""
    ended: _Ended = asyncio.get_running_loop().create_future()
    reading.add_done_callback(_heed)
    waiting.add(ended)
    try:
        await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.discard(ended)
    return await reading if reading.done() else None


def _handlers(
    methods: Iterable[Method], streams: set[asyncio.Task[Any]], waiting: Waiting[_Ended]
) -> list[grpc.GenericRpcHandler]:
    """Make the handlers of a server; messages stay bytes on both sides."""
    return [
        grpc.method_handlers_generic_handler(
            method.service,
            {method.name: grpc.stream_stream_rpc_method_handler(_handler(method.open, streams, waiting))},
        )
        for method in methods
    ]


def _handler(
    open_session: Callable[[], Session], streams: set[asyncio.Task[Any]], waiting: Waiting[_Ended]
) -> _Handler:
    async def handle(_messages: Any, context: _Context) -> None:
        task = asyncio.current_task()
        if task is not None:
            streams.add(task)
            task.add_done_callback(streams.discard)
        try:
            last = await _pump(open_session(), context, waiting)
        except Exception as error:  # noqa: BLE001  a session of any kind may fail in any way
            report_fault(error)
            last = Reply(None, True, grpc.StatusCode.INTERNAL, FAULT)
        if last.message is not None:
            await context.write(last.message)
        if last.status is not grpc.StatusCode.OK:
            await context.abort(last.status, last.details)

    return handle


async def _pump(session: Session, context: _Context, waiting: Waiting[_Ended]) -> Reply:
    """Carry one stream and return what is still to be sent.

    The end of a stream and its cancellation are both normal ends.
    """
    talk = _Talk(session, context, waiting)
    try:
        await talk.run()
    finally:
        last = session.close(delivered=talk.delivered)
    return talk.finished or last


class _Talk:
    """One stream while it runs.

    Attributes:
        delivered: whether the last answer was written, and none is awaited.
        finished: what ended the stream from our side, without its message; None if we did not.
    """

    def __init__(self, session: Session, context: _Context, waiting: Waiting[_Ended]) -> None:
        self.delivered = True
        self.finished: Reply | None = None
        self._session = session
        self._context = context
        self._waiting = waiting
        self._reading: asyncio.Future[Any] | None = None
        self._later: Later | None = None
        self._due = 0.0

    async def run(self) -> None:
        """Answer every message, until one side ends the stream."""
        reply = Reply()
        while self.finished is None:
            message = await self._read(reply)
            if message is grpc.aio.EOF or self.finished is not None:
                return
            reply = await self._say(self._session.receive(message))

    async def _read(self, after: Reply) -> Any:
        """Return the next message; None once it is not to be awaited."""
        self._note_later(after)
        if self._later is not None:
            timeout = max(self._due - asyncio.get_running_loop().time(), 0.0)
            done, _ = await asyncio.wait((self._read_ahead(),), timeout=timeout)
            if not done:
                later, self._later = self._later, None
                await self._say(later.ask())
        elif after.optional:
            message = await _read_optional(self._read_ahead(), self._waiting)
            self._reading = None
            if message is None:
                self.finished = Reply()
            return message
        if self.finished is not None:
            return None
        reading, self._reading = self._reading, None
        return await (self._context.read() if reading is None else reading)

    def _note_later(self, after: Reply) -> None:
        """Note what is to be done later, and since when."""
        if after is NOTHING:
            return
        self._later = after.later
        if after.later is not None:
            self._due = asyncio.get_running_loop().time() + after.later.seconds

    def _read_ahead(self) -> asyncio.Future[Any]:
        """Begin to read, unless that is under way."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
            self._reading.add_done_callback(_heed)
        return self._reading

    async def _say(self, asked: Answer) -> Reply:
        asked = Reply(asked) if isinstance(asked, bytes) else asked
        self.delivered = self.delivered and isinstance(asked, Reply)  # whatever is decided meanwhile
        reply = asked if isinstance(asked, Reply) else await asked
        if reply.then is not None:
            self.delivered = False
            if reply.message is not None:
                await self._context.write(reply.message)
            second = await _second(reply.then(), self._read_ahead())
            reply = Reply(None, True, grpc.StatusCode.CANCELLED) if second is None else second
        if reply.message is not None:
            self.delivered = False
            await self._context.write(reply.message)
            self.delivered = True  # what follows the first message is no news, but parts of a body
            for message in reply.more:
                await self._context.write(message)
        if reply.finished:
            self.finished = msgspec.structs.replace(reply, message=None)
        return reply
