"""The transport over grpc.aio: raw bytes, read and write, the stream ended right after the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from ext_proc.wire.transport import FAULT, OPTIONS, Method, Reply, Session, Waiting, report_fault

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

    def listen(self, address: str) -> int:
        """Listen on `ip:port` or `unix:/path`; returns the port, or 0 where that is impossible."""
        try:
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


async def _next(
    context: _Context, waiting: Waiting[_Ended], read: asyncio.Future[Any] | None, *, optional: bool
) -> Any:
    """Return the next message, of a read that is under way if there is one, or None once it is not to be awaited."""
    if optional:
        return await _read_optional(read or asyncio.ensure_future(context.read()), waiting)
    return await (context.read() if read is None else read)


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
    delivered = True
    finished = None
    optional = False
    read: asyncio.Future[Any] | None = None
    try:
        while (message := await _next(context, waiting, read, optional=optional)) is not grpc.aio.EOF:
            read = None
            if message is None:
                finished = Reply()
                break
            reply = session.receive(message)
            delivered = delivered and isinstance(reply, Reply)  # whatever is decided meanwhile
            if not isinstance(reply, Reply):
                reply = await reply
            if reply.then is not None:
                delivered = False
                if reply.message is not None:
                    await context.write(reply.message)
                read = asyncio.ensure_future(context.read())
                second = await _second(reply.then(), read)
                if second is None:
                    finished = Reply(None, True, grpc.StatusCode.CANCELLED)
                    break
                reply = second
            if reply.message is not None:
                delivered = False
                await context.write(reply.message)
                delivered = True
            if reply.finished:
                finished = reply._replace(message=None)
                break
            optional = reply.optional
    finally:
        last = session.close(delivered=delivered)
    return finished or last
