"""Chooses the transport: the completion queue where it proves to work with the installed grpcio, else grpc.aio."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from ext_proc.core.errors import ConfigError
from ext_proc.wire.grpc_aio import AioTransport
from ext_proc.wire.grpc_queue import QueueTransport, missing
from ext_proc.wire.transport import Method, Reply, Transport

CHECK_S: Final = 10.0
"""Seconds that the check of the completion queue may take."""

_PIECES: Final = (b"first", b"last")


class Choice(NamedTuple):
    """A transport, and why it is not the completion queue (empty if nothing speaks against that one)."""

    transport: Transport
    reason: str


async def choose(wanted: str, methods: Iterable[Method]) -> Choice:
    """Make the transport that the configuration asks for: `auto`, `queue` or `aio`.

    Raises:
        ConfigError: the completion queue is asked for and does not work here.
    """
    if wanted == "aio":
        return Choice(AioTransport(methods), "")
    reason = await unavailable()
    if not reason:
        return Choice(QueueTransport(methods), "")
    if wanted == "queue":
        raise ConfigError(f"queue cannot be used with grpcio {grpc.__version__}: {reason}", path="transport")
    return Choice(AioTransport(methods), reason)


def another(transport: Transport, methods: Iterable[Method]) -> Transport:
    """Make a transport of the same kind for other methods."""
    return AioTransport(methods) if isinstance(transport, AioTransport) else QueueTransport(methods)


async def unavailable() -> str:
    """Tell why the completion queue cannot be used, by a conversation with ourselves; empty if it can."""
    absent = missing()
    if absent:
        return f"this installation lacks {', '.join(absent)}"
    try:
        async with asyncio.timeout(CHECK_S):
            return await _converse()
    except Exception as error:  # noqa: BLE001  whatever a private interface may do, there is another transport
        return f"the check failed: {type(error).__name__} {error}".rstrip()


class _Echo:
    """Answers with what it gets, and ends at the last piece."""

    def __init__(self) -> None:
        self.ends: list[bool] = []

    def receive(self, message: bytes) -> Reply:
        return Reply(message, message == _PIECES[-1])

    def close(self, *, delivered: bool) -> Reply:
        self.ends.append(delivered)
        return Reply()


async def _converse() -> str:
    echo = _Echo()
    server = QueueTransport([Method("kvpicker.check", "Echo", lambda: echo)])
    with tempfile.TemporaryDirectory(prefix="kvpicker-") as folder:
        address = f"unix:{folder}/check.sock"
        server.listen(address)
        await server.start()
        try:
            answers = await _ask(address)
        finally:
            await server.stop(0)
    if answers != list(_PIECES):
        return f"the check was answered with {answers}"
    return "" if echo.ends == [True] else f"the check ended with {echo.ends}"


async def _ask(address: str) -> list[bytes]:
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        call: Any = channel.stream_stream("/kvpicker.check/Echo")()
        for piece in _PIECES:
            await call.write(piece)
        return [answer async for answer in call]
