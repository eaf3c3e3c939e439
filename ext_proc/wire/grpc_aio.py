"""The transport over grpc.aio: raw bytes, read and write, the stream ended right after the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from ext_proc.wire.transport import FAULT, OPTIONS, Later, Method, Reply, Session, Waiting, report_fault

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


async def _read_optional(context: _Context, waiting: Waiting[_Ended]) -> Any:
    """Return the next message, or None once the stream is to end without it."""
    ended: _Ended = asyncio.get_running_loop().create_future()
    reading = asyncio.ensure_future(context.read())
    reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # nobody may be left to ask for it
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
        delivered: whether the last answer was written.
        finished: what ended the stream from our side, without its message; None if we did not.
    """

    def __init__(self, session: Session, context: _Context, waiting: Waiting[_Ended]) -> None:
        self.delivered = True
        self.finished: Reply | None = None
        self._session = session
        self._context = context
        self._waiting = waiting

    async def run(self) -> None:
        """Answer every message, until one side ends the stream."""
        reply = Reply()
        while self.finished is None:
            message = await self._read(reply)
            if message is grpc.aio.EOF or self.finished is not None:
                return
            reply = await self._say(self._session.receive(message))

    async def _read(self, after: Reply) -> Any:
        if after.later is not None:
            return await self._read_before(after.later)
        if not after.optional:
            return await self._context.read()
        message = await _read_optional(self._context, self._waiting)
        if message is None:
            self.finished = Reply()
        return message

    async def _read_before(self, later: Later) -> Any:
        """Read a message; if it is late, say first what answers none."""
        reading = asyncio.ensure_future(self._context.read())
        reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # nobody may be left to ask for it
        done, _ = await asyncio.wait((reading,), timeout=later.seconds)
        if not done:
            await self._say(later.ask())
            if self.finished is not None:
                return None
        return await reading

    async def _say(self, asked: Reply | Awaitable[Reply]) -> Reply:
        reply = asked if isinstance(asked, Reply) else await asked
        if reply.message is not None:
            self.delivered = False
            await self._context.write(reply.message)
            for message in reply.more:
                await self._context.write(message)
            self.delivered = True
        if reply.finished:
            self.finished = reply._replace(message=None)
        return reply
