"""An engine that keeps the bytes of requests as they came, and answers with bytes that it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

Headers = list[tuple[str, str]]


class Received(NamedTuple):
    """A request of a client; names of headers are lower-case."""

    method: str
    path: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Return the last value of a header, nothing if it is absent."""
        return dict(self.headers).get(name, "")


class Reply(NamedTuple):
    """What is answered, in these pieces."""

    kind: str = "application/json"
    pieces: Iterable[bytes] = (b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}',)
    status: int = 200


def _usual(_request: Received) -> Reply:
    return Reply()


class RawEngine:
    """Serves some models; kvpicker's own questions are answered and not kept."""

    def __init__(self, models: Iterable[str], answer: Callable[[Received], Reply] = _usual) -> None:
        self.address = ""
        self.received: list[Received] = []
        self._listing = json.dumps({"object": "list", "data": [{"id": model} for model in models]}).encode()
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the connection ends."""
        try:
            while True:
                await self._serve_one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        request = Received(method, path, headers, await _read_body(reader, dict(headers)))
        reply = Reply("application/json", (self._listing,))
        if request.header("x-request-id"):
            self.received.append(request)
            reply = self._answer(request)
        bodyless = method == "HEAD" or reply.status in {204, 304}
        framing = "" if bodyless else "transfer-encoding: chunked\r\n"
        writer.write(f"HTTP/1.1 {reply.status} -\r\ncontent-type: {reply.kind}\r\n{framing}\r\n".encode())
        if not bodyless:
            for piece in filter(None, reply.pieces):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


@contextlib.asynccontextmanager
async def running(engine: RawEngine) -> AsyncIterator[RawEngine]:
    """Run an engine on a free port."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    engine.address = f"{host}:{port}"
    try:
        yield engine
    finally:
        server.close()
