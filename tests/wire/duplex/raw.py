"""HTTP/1.1 by hand: an engine that answers in the shape a request asks for, and a client that sends bodies in any."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.wire.stack import MODEL

WAIT_S = 20.0
USAGE = {"prompt_tokens": 120, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 96}}


class HttpMessage(NamedTuple):
    """A request or an answer as it was on the wire; `whole` is False if the connection ended within it."""

    first: str
    headers: dict[str, str]
    body: bytes = b""
    trailers: tuple[str, ...] = ()
    whole: bool = True

    @property
    def status(self) -> int:
        """Status of an answer."""
        return int(self.first.split()[1])


async def read_http(reader: asyncio.StreamReader, *, bodyless: bool = False, until_end: bool = False) -> HttpMessage:
    """Read one message; raises IncompleteReadError if there is none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body, trailers, whole = bytearray(), (), True
    try:
        if bodyless:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            trailers = await _read_trailers(reader)
        elif "content-length" in headers:
            body += await reader.readexactly(int(headers["content-length"]))
        elif until_end:
            body += await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        whole = False
    return HttpMessage(first, headers, bytes(body), trailers, whole)


async def _read_trailers(reader: asyncio.StreamReader) -> tuple[str, ...]:
    lines = []
    while (line := (await reader.readuntil(b"\r\n")).strip()) != b"":
        lines.append(line.decode())
    return tuple(lines)


def content(size: int, seed: int) -> bytes:
    """Make the bytes of an answer."""
    return random.Random(seed).randbytes(size)


def answer_body(kind: str, size: int) -> bytes:
    """Return what an engine sends for a shape."""
    if kind in ("none", "status"):
        return b""
    if kind != "events":
        return content(size, size)
    pieces = [b'data: {"choices":[{"delta":{"content":"w%d"}}]}\n\n' % number for number in range(size)]
    usage = json.dumps({"choices": [], "usage": USAGE}).encode()
    return b"".join([*pieces, b"data: ", usage, b"\n\ndata: [DONE]\n\n"])


class Mirror:
    """An engine on a free port.

    The header `x-shape` says how it answers: `length 100`, `chunked 100`, `trailers 100`, `events 20`, `none 0`,
    `status 500`, `cut 5`; `x-case` under what name it keeps what it got.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.got: dict[str, HttpMessage] = {}
        self.begun: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                request = await read_http(reader)
                if "upgrade" in request.headers:
                    writer.write(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
                    while data := await reader.read(65_536):
                        writer.write(data)
                    break
                if not await self._answer(request, writer):
                    break
        writer.close()

    async def _answer(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
        case = request.headers.get("x-case")
        if case is None:  # kvpicker asks for models
            body = json.dumps({"data": [{"id": MODEL}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            return True
        self.got[case] = request
        kind, _, number = request.headers.get("x-shape", "length 10").partition(" ")
        size = int(number)
        body = b"" if request.first.startswith("HEAD") else answer_body(kind, size)
        status, media = size if kind == "status" else 204 if kind == "none" else 200, "application/octet-stream"
        head = f"HTTP/1.1 {status} X\r\nx-engine: {self.name}\r\nx-tag: a\r\nx-tag: b\r\n"
        if kind in ("none", "status", "length"):
            head += "" if kind == "none" else f"content-length: {len(body)}\r\ncontent-type: {media}\r\n"
            writer.write(head.encode() + b"\r\n" + body)
            await writer.drain()
            return True
        media = "text/event-stream" if kind in ("events", "cut") else media
        writer.write(head.encode() + f"content-type: {media}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        self.begun.add(case)
        if kind == "cut":
            writer.write(b"9\r\ndata: {}\n\r\n")
            await writer.drain()
            return False
        step = 97 if kind == "events" else 30_011
        for at in range(0, len(body), step):
            piece = body[at : at + step]
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            await asyncio.sleep(0)
        writer.write(b"0\r\nx-checksum: 7\r\n\r\n" if kind == "trailers" else b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def mirrors(count: int = 3) -> AsyncIterator[list[Mirror]]:
    """Run some engines."""
    engines = [Mirror(f"mirror-{number}") for number in range(count)]
    servers = []
    for engine in engines:
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 20)
        host, port = server.sockets[0].getsockname()[:2]
        engine.address = f"{host}:{port}"
        servers.append(server)
    try:
        yield engines
    finally:
        for server in servers:
            server.close()


class Ask(NamedTuple):
    """A request to send.

    Attributes:
        case: its name.
        method: HTTP method.
        path: path.
        body: body; None sends none at all.
        framing: `length`, `chunked`, or `trailers`, which is chunked too.
        cuts: where a chunked body is cut.
        shape: how the engine is to answer.
        leave: True to leave when the answer begins.
        headers: further header lines.
    """

    case: str
    method: str = "POST"
    path: str = "/v1/chat/completions"
    body: bytes | None = None
    framing: str = "length"
    cuts: Sequence[int] = ()
    shape: str = "length 10"
    leave: bool = False
    headers: tuple[str, ...] = ()

    def wire(self) -> list[bytes]:
        """Write it as pieces."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: llm", f"x-case: {self.case}", f"x-shape: {self.shape}"]
        lines += ["content-type: application/json", "x-tag: a", "x-tag: b", *self.headers]
        if self.body is None:
            return [("\r\n".join(lines) + "\r\n\r\n").encode()]
        if self.framing == "length":
            lines.append(f"content-length: {len(self.body)}")
            return [("\r\n".join(lines) + "\r\n\r\n").encode(), self.body]
        lines += ["transfer-encoding: chunked", *(["trailer: x-checksum"] if self.framing == "trailers" else [])]
        edges = [0, *sorted(self.cuts), len(self.body)]
        parts = [self.body[a:b] for a, b in itertools.pairwise(edges) if b > a]
        written = [b"%x\r\n" % len(part) + part + b"\r\n" for part in parts]
        end = b"0\r\nx-checksum: 1\r\n\r\n" if self.framing == "trailers" else b"0\r\n\r\n"
        return [("\r\n".join(lines) + "\r\n\r\n").encode(), *written, end]


async def ask(port: int, request: Ask) -> HttpMessage | None:
    """Send a request on a connection of its own and return the answer; None if the client left first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        sending = asyncio.ensure_future(_send(writer, request))
        if request.leave:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            sending.cancel()
            return None
        answer = await asyncio.wait_for(read_http(reader, bodyless=request.method == "HEAD"), WAIT_S)
        await sending
        return answer
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, request: Ask) -> None:
    with contextlib.suppress(ConnectionError):
        for piece in request.wire():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
