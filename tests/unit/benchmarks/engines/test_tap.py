"""The relay before an engine changes nothing and notes everything."""

from __future__ import annotations

import hashlib

import aiohttp
from aiohttp import web

from tests.engines.tap import Tap


async def test_bodies_and_answers_pass_unchanged() -> None:
    """Bytes arrive as they were sent, in both directions, and their digest is kept by path."""
    seen = []

    async def echo(request: web.BaseRequest) -> web.Response:
        seen.append((request.path_qs, await request.read()))
        return web.Response(status=418, body=b"\x00answer", headers={"x-engine": "yes"})

    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    body = bytes(range(256)) * 100
    async with Tap(f"http://{host}:{port}").running() as tap, aiohttp.ClientSession() as session:
        async with session.post(f"http://{tap.address}/a?b=c", data=body) as answer:
            told = answer.status, answer.headers["x-engine"], await answer.read()
        await runner.cleanup()
        async with session.post(f"http://{tap.address}/a", data=b"") as answer:
            assert answer.status == 502
    assert told == (418, "yes", b"\x00answer")
    assert seen == [("/a?b=c", body)]
    assert tap.digests("/a")[0] == hashlib.sha256(body).hexdigest()
