"""One ext_proc stream as a client has it: answers are read as they come, and every wait has an end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Self

import grpc
import grpc.aio

from ext_proc.conformance.answers import Answer

METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_CLIENTS_OWN: Final = "Internal error from Core"
_MOST_UNREAD: Final = 1_000


class Stream:
    """A stream to the target.

    Args:
        channel: a connection to it.
        patience_s: seconds that an answer may take.
    """

    def __init__(self, channel: grpc.aio.Channel, patience_s: float) -> None:
        self.ended = False
        self._patience_s = patience_s
        self._call: Any = channel.stream_stream(METHOD)()
        self._unread: asyncio.Queue[Answer | None] = asyncio.Queue(_MOST_UNREAD)
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                await self._unread.put(Answer.read(data))
        except grpc.aio.AioRpcError:
            pass  # the status is asked for where it matters
        await self._unread.put(None)

    async def send(self, message: bytes) -> bool:
        """Send a message; False if the stream has ended."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            return False
        return True

    async def next(self, seconds: float | None = None) -> Answer | None:
        """Return the next answer, or None at the end of the stream.

        Raises:
            TimeoutError: nothing came in time.
        """
        if self.ended:
            return None
        async with asyncio.timeout(self._patience_s if seconds is None else seconds):
            answer = await self._unread.get()
        self.ended = answer is None
        return answer

    async def half_close(self) -> None:
        """Say that no more messages follow."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        """Break the stream off, as Envoy does when a client leaves."""
        self._call.cancel()

    async def status(self) -> grpc.StatusCode | None:
        """Return how the stream ended; None if that is not known.

        Where it ended while a message was being sent, grpc.aio puts a status of its own in the place of the target's.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                code: grpc.StatusCode = await asyncio.shield(asyncio.ensure_future(self._call.code()))
                details = await self._call.details()
        except TimeoutError:
            return None
        return None if details == _CLIENTS_OWN else code
