"""A relay between Envoy and kvpicker's socket that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path


class Relay:
    """Passes bytes on in both directions until it is cut.

    Args:
        listens: the socket that it listens on.
        target: the socket that it passes on to.
    """

    def __init__(self, listens: Path, target: Path) -> None:
        self.listens = listens
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen."""
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
            there, back = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._writers -= {writer, back}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()
