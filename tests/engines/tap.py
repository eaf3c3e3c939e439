"""A relay in front of an engine that keeps the digest of every body it passes on: what the engine was really sent."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from aiohttp import web

from ext_proc.core.names import RANK

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"})


class Passed(NamedTuple):
    """One request that was passed on: its path, the SHA-256 of its body, and the rank that was named, if any."""

    path: str
    digest: str
    rank: str | None = None


class Tap:
    """Takes what is sent to an engine, notes it, and passes it on as it came.

    Args:
        target: URL of the engine.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.passed: list[Passed] = []
        self._target = target
        self._session: aiohttp.ClientSession

    def digests(self, path: str) -> list[str]:
        """Return the digests of the bodies that were sent to a path."""
        return [passed.digest for passed in self.passed if passed.path == path]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on, and the answer back; an engine that does not answer is a bad gateway."""
        body = await request.read()
        digest = hashlib.sha256(body).hexdigest()
        self.passed.append(Passed(request.path, digest, request.headers.get(RANK)))
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP]
        try:
            async with self._session.request(
                request.method, self._target + request.path_qs, data=body, headers=headers, allow_redirects=False
            ) as told:
                kept = [(name, value) for name, value in told.headers.items() if name.lower() not in _HOP_BY_HOP]
                return web.Response(status=told.status, headers=dict(kept), body=await told.read())
        except aiohttp.ClientError:
            return web.Response(status=502)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tap]:
        """Listen on a free port."""
        server = web.Server(self.answer, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0][:2]
                self.address = f"{host}:{port}"
                yield self
            finally:
                await runner.cleanup()
