"""A server that answers as a test says at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web

Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """What a test sets and reads of a server."""

    def __init__(self) -> None:
        self.address = ""
        self.answer: Answer = page(b"")
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.at_once = 0
        self.most_at_once = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Note the request and give the answer of the moment."""
        self.asked.append(request.path)
        self.authorizations.append(request.headers.get("Authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.answer(request)
        finally:
            self.at_once -= 1


def page(body: bytes, status: int = 200, **headers: str) -> Answer:
    """Answer with these bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def only_at(path: str, body: bytes) -> Answer:
    """Answer with these bytes at one path, and 404 at any other."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body) if request.path == path else web.Response(status=404)

    return answer


def redirecting(location: str, body: bytes) -> Answer:
    """Send whoever asks for /metrics somewhere else, and answer there with these bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.Response(status=307, headers={"Location": location})
        return web.Response(body=body)

    return answer


async def hang(_: web.Request) -> web.StreamResponse:
    """Accept the request and never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def drip(request: web.Request) -> web.StreamResponse:
    """Send a page that never ends, a little at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


async def flood(request: web.Request) -> web.StreamResponse:
    """Send a page that never ends, as fast as it goes."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#" * 65_536)


async def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    """Promise more bytes than are sent."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"vllm:num_requests_running 4\nvllm:num_re")
    assert request.transport is not None
    request.transport.abort()
    return response


def until_closed(body: bytes) -> Answer:
    """Answer with bytes that end with the connection, as HTTP/1.0 does."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        request.transport.close()
        raise asyncio.CancelledError

    return answer


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[Engine]:
    """Run an engine on a port of its own, or on one it had before."""
    engine = Engine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    engine.address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
