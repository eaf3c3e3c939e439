"""Faults of the simulated engine, as a client meets them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from ext_proc.sim.engine import SimEngine
from tests.waiting import until

Chat = Callable[..., dict[str, Any]]
CHAT = "/v1/chat/completions"


def fault(header: str) -> dict[str, str]:
    """The header that asks for a fault."""
    return {"x-sim-fault": header}


async def raw_exchange(engine: SimEngine, header: str, body: bytes) -> tuple[bytes, bool]:
    """Send one request on a socket; the bytes of the answer, and whether it ended in a reset."""
    reader, writer = await asyncio.open_connection(*engine.address.split(":"))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-sim-fault: {header}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    received = b""
    try:
        while piece := await reader.read(65_536):
            received += piece
    except ConnectionResetError:
        return received, True
    finally:
        writer.close()
    return received, False


WHOLE = b'{"messages":[{"role":"user","content":"x"}]}'
STREAM = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'


async def test_a_reset_before_headers_sends_nothing(engine: SimEngine) -> None:
    """The connection is reset before a single byte of the answer."""
    assert await raw_exchange(engine, "reset_before_headers", WHOLE) == (b"", True)


@pytest.mark.parametrize(("kind", "reset"), [("reset_mid_stream", True), ("fin_mid_stream", False)])
async def test_a_stream_can_be_cut(engine: SimEngine, kind: str, reset: bool) -> None:
    """After some events the connection ends, by RST or FIN, without the end of the stream."""
    received, was_reset = await raw_exchange(engine, f"{kind};after=2", STREAM)
    assert (received.count(b"data: "), was_reset) == (2, reset)
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(("kind", "reset"), [("reset_mid_stream", True), ("fin_mid_stream", False)])
async def test_an_answer_without_a_stream_can_be_cut(engine: SimEngine, kind: str, reset: bool) -> None:
    """Half of a body that announced its length arrives."""
    received, was_reset = await raw_exchange(engine, kind, WHOLE)
    assert (received.startswith(b"HTTP/1.1 200"), was_reset) == (True, reset)
    assert not received.endswith(b"}")


@pytest.mark.parametrize(
    ("header", "status", "retry_after"),
    [("error_500", 500, None), ("busy_503;retry_after=7", 503, "7"), ("status=429", 429, None)],
    ids=["error", "busy", "any status"],
)
async def test_errors_on_demand(
    engine: SimEngine, http: aiohttp.ClientSession, chat: Chat, header: str, status: int, retry_after: str | None
) -> None:
    """Any error status can be had, in the API's error shape."""
    async with http.post(engine.url + CHAT, json=chat(), headers=fault(header)) as response:
        assert (response.status, response.headers.get("retry-after")) == (status, retry_after)
        assert (await response.json())["error"]["code"] == status


@pytest.mark.parametrize(
    "header", ["stall;seconds=0.2", "slow_start;seconds=0.2", "stall;seconds=0.2;after=1"], ids=str
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_answers_can_be_late(
    engine: SimEngine, http: aiohttp.ClientSession, chat: Chat, header: str, stream: bool
) -> None:
    """A stall or a slow start delays the answer and leaves it whole."""
    start = asyncio.get_running_loop().time()
    async with http.post(engine.url + CHAT, json=chat(stream=stream), headers=fault(header)) as response:
        body = await response.text()
    assert asyncio.get_running_loop().time() - start >= 0.2
    assert body.endswith("[DONE]\n\n" if stream else "}")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("null", '"usage":null'), ("strings", '"prompt_tokens":"8"'), ("negative", '"prompt_tokens":-3'), ("huge", "e30")],
    ids=["null", "strings", "negative", "huge"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_odd_usage(
    engine: SimEngine, http: aiohttp.ClientSession, chat: Chat, kind: str, expected: str, stream: bool
) -> None:
    """Odd usage blocks are where the good ones would be."""
    body = chat("x", stream=stream, stream_options={"include_usage": True})
    async with http.post(engine.url + CHAT, json=body, headers=fault(f"usage={kind}")) as response:
        assert expected in (await response.text()).replace("+", "")


async def test_missing_usage(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """An answer can come without any usage."""
    async with http.post(engine.url + CHAT, json=chat(), headers=fault("usage=missing")) as response:
        assert "usage" not in await response.json()


@pytest.mark.parametrize(
    ("style", "ending"),
    [
        ("crlf", b"data: [DONE]\r\n\r\n"),
        ("no_space", b"data:[DONE]\n\n"),
        ("no_final_newline", b"data: [DONE]"),
        ("comments", b": keepalive\n\ndata: [DONE]\n\n"),
    ],
    ids=["crlf", "no space", "no final newline", "comments"],
)
async def test_odd_event_streams(
    engine: SimEngine, http: aiohttp.ClientSession, chat: Chat, style: str, ending: bytes
) -> None:
    """Event streams can be written in the odd ways that are seen in the field."""
    async with http.post(engine.url + CHAT, json=chat(stream=True), headers=fault(f"sse={style}")) as response:
        assert (await response.read()).endswith(ending)


async def test_an_error_inside_a_stream(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """A stream that began with 200 can end in an error event."""
    body = chat(stream=True)
    async with http.post(engine.url + CHAT, json=body, headers=fault("error_in_stream;after=2")) as response:
        events = (await response.text()).split("\n\n")
    assert '"error":{' in events[2]
    assert events[3:] == ["data: [DONE]", ""]


async def test_a_faulty_request_leaves_nothing_behind(start_engine: Any) -> None:
    """A stream that was cut on purpose frees its memory."""
    engine = await start_engine(speed=50)
    await raw_exchange(engine, "reset_mid_stream;after=2", STREAM)
    assert (engine.scheduler.cache.used, engine.scheduler.running) == (0, [])


async def test_admin_faults_hit_later_requests(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """A fault set up by an admin call hits as many requests as it says."""
    async with http.post(engine.url + "/sim/faults", json={"kind": "error_500", "count": 1}) as response:
        assert response.status == 200
    statuses = []
    for _ in range(2):
        async with http.post(engine.url + CHAT, json=chat()) as response:
            statuses.append(response.status)
    assert statuses == [500, 200]


async def test_admin_faults_can_be_listed_and_removed(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    """What is set up can be seen and taken back."""
    url = engine.url + "/sim/faults"
    await http.post(url, json={"kind": "usage=null"})
    async with http.get(url) as response:
        assert [entry["kind"] for entry in await response.json()] == ["usage"]
    await http.delete(url)
    async with http.get(url) as response:
        assert await response.json() == []


async def test_an_unknown_fault_is_a_400(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """A misspelt fault is refused in header and admin call alike."""
    async with http.post(engine.url + CHAT, json=chat(), headers=fault("nonsense")) as response:
        assert response.status == 400
    async with http.post(engine.url + "/sim/faults", json={"kind": "nonsense"}) as response:
        assert response.status == 400


def listens(engine: SimEngine) -> bool:
    """Whether the engine accepts connections."""
    host, port = engine.address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_an_engine_can_refuse_connections_for_a_while(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    """The port refuses, idle connections close, and after the time the same port answers again."""
    async with http.post(engine.url + "/sim/faults", json={"kind": "refuse", "for": 0.3}) as response:
        assert response.status == 200
    await until(lambda: not listens(engine))
    await until(lambda: listens(engine))
    async with http.get(engine.url + "/health") as response:
        assert response.status == 200


async def test_a_content_length_can_promise_too_much(engine: SimEngine) -> None:
    """The connection ends before as many bytes came as were promised."""
    received, _ = await raw_exchange(engine, "wrong_length;by=7", WHOLE)
    head, _, body = received.partition(b"\r\n\r\n")
    assert f"content-length: {len(body) + 7}" in head.decode().lower()


async def test_a_content_length_can_promise_too_little(engine: SimEngine) -> None:
    """More bytes come than were promised, on the same connection."""
    reader, writer = await asyncio.open_connection(*engine.address.split(":"))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-sim-fault: wrong_length;by=-7\r\ncontent-length: {len(WHOLE)}\r\n\r\n"
    writer.write(head.encode() + WHOLE)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    promised = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
    assert len(await reader.readexactly(promised + 7)) == promised + 7
    writer.close()
