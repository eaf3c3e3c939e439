"""An engine that answers in the pieces that a request asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from aiohttp import web

from tests.wire.stack import MODEL

CHAT = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "List three rivers. " * 30}]}


class Engine:
    """Answers with the pieces that a request asks for, each after its pause in seconds."""

    def __init__(self) -> None:
        self.address = ""
        self.begun = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request; headers go out before the first pause, as vLLM sends them."""
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": MODEL}]})
        wanted = json.loads(await request.read())
        kind = wanted.get("kind", "text/event-stream")
        response = web.StreamResponse(status=wanted.get("status", 200), headers={"content-type": kind})
        self.begun += 1
        for number, (pause, piece) in enumerate(wanted["pieces"]):
            if number == 0 and not wanted.get("late"):
                await response.prepare(request)
            await asyncio.sleep(pause)
            if number == 0 and wanted.get("late"):
                await response.prepare(request)
            await response.write(piece.encode())
        return response if response.prepared else web.Response(status=wanted.get("status", 200))


@contextlib.asynccontextmanager
async def running_engine() -> AsyncIterator[Engine]:
    """Run the engine on a free port."""
    engine = Engine()
    runner = web.ServerRunner(web.Server(engine.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    engine.address = f"{host}:{port}"
    try:
        yield engine
    finally:
        await runner.cleanup()


def token(text: str) -> str:
    """Write an event with a piece of text."""
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n"
