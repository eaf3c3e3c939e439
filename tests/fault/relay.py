"""A relay that can be cut: between Envoy and kvpicker's socket, or between kvpicker and an engine's port."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path


class Relay:
    """Passes bytes on in both directions until it is cut.

    Args:
        listens: the Unix socket, or the port of the loopback address, that it listens on.
        target: the same that it passes on to.
    """

    def __init__(self, listens: Path | int, target: Path | int) -> None:
        self.listens = listens
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen."""
        if isinstance(self.listens, int):
            self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.listens)
        else:
            self.listens.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._pass, str(self.listens))

    async def stop(self) -> None:
        """Cut what runs and listen no more; harmless if it does not."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), 2)
        self._server = None

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await self._open()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._writers -= {writer, back}

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, int):
            return await asyncio.open_connection("127.0.0.1", self._target)
        return await asyncio.open_unix_connection(str(self._target))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()
