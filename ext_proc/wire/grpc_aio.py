"""The transport over grpc.aio: raw bytes, read and write, the stream ended right after the last answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from ext_proc.wire.transport import Method, Reply, Session

_Context: TypeAlias = Any  # grpc.aio.ServicerContext[bytes, bytes], which is generic in stubs only
_Handler: TypeAlias = Callable[[Any, _Context], Awaitable[None]]

OPTIONS: tuple[tuple[str, int], ...] = (
    # A buffered body may be twice Envoy's buffer limit; the library's 4 MiB would refuse it.
    ("grpc.max_receive_message_length", -1),
    # Envoy may ping often; the defaults answer with GOAWAY too_many_pings and cut running streams.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would each get a part of the connections, and neither would notice.
    ("grpc.so_reuseport", 0),
)


def handlers(methods: Iterable[Method]) -> list[grpc.GenericRpcHandler]:
    """Make the handlers of a grpc.aio server; messages stay bytes on both sides."""
    return [
        grpc.method_handlers_generic_handler(
            method.service, {method.name: grpc.stream_stream_rpc_method_handler(_handler(method.open))}
        )
        for method in methods
    ]


def _handler(open_session: Callable[[], Session]) -> _Handler:
    async def handle(_messages: Any, context: _Context) -> None:
        await _pump(open_session(), context)

    return handle


async def _pump(session: Session, context: _Context) -> None:
    """Carry one stream; the end of a stream and its cancellation are both normal ends."""
    delivered = True
    try:
        while (message := await context.read()) is not grpc.aio.EOF:
            reply = session.receive(message)
            if not isinstance(reply, Reply):
                reply = await reply
            if reply.message is not None:
                delivered = False
                await context.write(reply.message)
                delivered = True
            if reply.finished:
                if reply.status is not grpc.StatusCode.OK:
                    await context.abort(reply.status, reply.details)
                return
    finally:
        last = session.close(delivered=delivered)
    if last.message is not None:
        await context.write(last.message)
