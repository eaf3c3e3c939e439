"""HTTP itself: framing, expectations, upgrades, and the first moments after the start."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.wire.stack import MODEL, Stack, received, running_stack

pytestmark = pytest.mark.envoy


async def raw(stack: Stack, request: bytes, seconds: float = 5.0) -> bytes:
    """Send bytes on a connection of their own and return what comes until it closes or falls silent."""
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = b""
    try:
        while chunk := await asyncio.wait_for(reader.read(65536), seconds):
            answer += chunk
    except TimeoutError:
        pass
    writer.close()
    await writer.wait_closed()
    return answer


def body(size: int = 0) -> bytes:
    """Make a chat request of about that many bytes."""
    message = {"role": "user", "content": "x" * size}
    return json.dumps({"model": MODEL, "max_tokens": 1, "messages": [message]}).encode()


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\nconnection: close\r\n"


async def test_duplicate_headers_reach_the_engine_in_order(stack: Stack) -> None:
    """Headers of the client are neither merged nor lost (G13)."""
    data = body()
    tags = b"x-tag: a\r\nx-tag: b\r\n"
    await raw(stack, HEAD + tags + b"content-length: %d\r\n\r\n" % len(data) + data)
    (entry,) = await received(stack, "/v1/chat")
    values = [value for name, value in entry["headers"] if name.lower() == "x-tag"]
    assert ",".join(values).replace(" ", "") == "a,b"


@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "300 KB"])
async def test_length_of_the_body_is_kept(stack: Stack, size: int) -> None:
    """A body with a length reaches the engine with that length, not chunked (G12)."""
    data = body(size)
    await stack.post("/v1/chat/completions", data)
    (entry,) = await received(stack, "/v1/chat")
    headers = {name.lower(): value for name, value in entry["headers"]}
    assert headers["content-length"] == str(len(data))
    assert "transfer-encoding" not in headers


async def test_chunked_body_is_understood(stack: Stack) -> None:
    """A body without a length is read and goes on whole."""
    data = body(5000)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:100], data[100:])) + b"0\r\n\r\n"
    answer = await raw(stack, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 200")
    (entry,) = await received(stack, "/v1/chat")
    assert entry["body_length"] == len(data)


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 3\r\n\r\n0123456789GET /v1/models HTTP/1.1\r\nhost: llm\r\n\r\n",
    ],
    ids=["length and chunked", "longer than its length"],
)
async def test_ambiguous_framing_gains_nothing(stack: Stack, request_bytes: bytes) -> None:
    """Envoy's own defence stands; no second request is smuggled in (H12)."""
    await raw(stack, request_bytes)
    assert await received(stack, "/v1/models") == []


async def test_client_that_waits_for_100_continue_is_not_held_up(stack: Stack) -> None:
    """A large body with Expect goes through at once (A36)."""
    data = body(1_500_000)
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    began = time.monotonic()
    writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(data))
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 100")
    assert time.monotonic() - began < 1
    await reader.readline()
    writer.write(data)
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_upgrade_is_picked_by_its_headers(stack: Stack) -> None:
    """A WebSocket upgrade is placed at once; its endless body is never waited for (A57)."""
    upgrade = (
        b"GET /v1/realtime?model=sim%2Fchat-8b HTTP/1.1\r\nhost: llm\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await raw(stack, upgrade, 1.0)).startswith(b"HTTP/1.1 404")
    (line,) = await stack.finished(1)
    assert (line["operation"], line["model"]) == ("lookup", MODEL)


@pytest.mark.parametrize("method", ["OPTIONS", "DELETE", "HEAD", "PUT"])
async def test_other_methods_are_answered_by_an_engine(stack: Stack, method: str) -> None:
    """Methods that kvpicker has no opinion on pass through (A66)."""
    async with stack.client.request(method, f"{stack.url}/v1/chat/completions") as answer:
        assert answer.headers["x-sim-engine"].startswith("engine-")


async def test_first_requests_after_the_start_meet_no_timeout(tmp_path: Path) -> None:
    """Once ready, a kvpicker answers bodies of 1 MB within Envoy's shortest usual limit (G15)."""
    async with running_stack(tmp_path, engines=1, message_timeout=0.2) as stack:
        for _ in range(30):
            status, _, _ = await stack.post("/v1/chat/completions", body(1_000_000))
            assert status == 200
        assert await stack.violations() == {}
