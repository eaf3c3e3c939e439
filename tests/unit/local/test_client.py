"""The client that times chat answers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ext_proc.local.client import Reply, chat
from ext_proc.sim.engine import EngineOptions, SimEngine

BODY: dict[str, Any] = {"model": "sim-model", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 8}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def send(fault: str = "", **changes: Any) -> Reply:
    """Send one request to a simulated engine that has seen it once."""
    headers = {"x-sim-fault": fault} if fault else {}
    async with SimEngine(EngineOptions(speed=100)) as engine, aiohttp.ClientSession() as session:
        await chat(session, engine.url, BODY, "first")
        async with aiohttp.ClientSession(headers=headers) as faulty:
            return await chat(faulty, engine.url, BODY | changes, "second")


async def test_tokens_and_text_are_read_from_the_stream() -> None:
    """The answer is whole, and the usage is the engine's."""
    reply = await send()
    assert (reply.error, reply.prompt_tokens, reply.cached_tokens, len(reply.text)) == ("", 108, 96, 32)


async def test_the_first_token_is_timed() -> None:
    """Headers and the role come before it and do not count."""
    reply = await send("slow_start;extra=0.2")
    assert reply.ttft is not None
    assert reply.ttft > 0.15


@pytest.mark.parametrize("fault", ["sse=crlf", "sse=comments", "sse=no_space", "sse=no_final_newline"])
async def test_every_notation_of_a_stream_is_understood(fault: str) -> None:
    """Line ends, comments and spaces are the engine's choice."""
    reply = await send(fault)
    assert (reply.error, len(reply.text)) == ("", 32)


@pytest.mark.parametrize("fault", ["usage=null", "usage=missing", "usage=strings"])
async def test_an_odd_usage_is_no_usage(fault: str) -> None:
    """The answer counts, its token counts do not."""
    reply = await send(fault)
    assert (reply.error, reply.cached_tokens) == ("", None)


async def test_a_refusal_becomes_the_error() -> None:
    """The status and the engine's own words are kept."""
    reply = await send(model="other")
    assert reply.error.startswith("status 404: ")
    assert "other" in reply.error


@pytest.mark.parametrize("fault", ["reset_before_headers", "reset_mid_stream;after=3", "error_in_stream"])
async def test_a_broken_answer_becomes_an_error(fault: str) -> None:
    """Nothing is raised."""
    assert (await send(fault)).error


async def test_a_refused_connection_becomes_an_error(session: aiohttp.ClientSession) -> None:
    """Nothing is raised."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        reply = await chat(session, f"http://127.0.0.1:{nobody.getsockname()[1]}", BODY, "id")
    assert "connect" in reply.error.lower()


@pytest.mark.parametrize("text", ["", "data: [DONE]\n\n", "data: {broken\n\n", 'data: {"choices": []}\n\n'])
async def test_a_stream_without_a_token_is_an_error(session: aiohttp.ClientSession, text: str) -> None:
    """An empty answer is none."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response(text=text, content_type="text/event-stream")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reply = await chat(session, f"http://127.0.0.1:{runner.addresses[0][1]}", BODY, "id")
    finally:
        await runner.cleanup()
    assert reply.error == "the stream held no token"
