"""Answers pass untouched, and the outcome is read from them whatever they look like."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "List three rivers. " * 30}]}
USAGE = b'{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6}}'


class Engine:
    """An engine that answers as it is told, byte for byte."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.chunks: Iterable[bytes] = ()
        self.address = ""
        self.accepted = ""
        self.lingers = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": MODEL}]})
        await request.read()
        self.accepted = request.headers.get("accept-encoding", "")
        response = web.StreamResponse(status=self.status, headers=self.headers)
        if self.status not in {204, 304}:
            response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in self.chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if self.lingers:
            await asyncio.sleep(30)
        return response


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """Run the engine."""
    made = Engine()
    runner = web.ServerRunner(web.Server(made.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    made.address = f"{host}:{port}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def scripted(tmp_path: Path, engine: Engine) -> AsyncIterator[Stack]:
    """Run Envoy and kvpicker in front of that engine alone."""
    async with running_stack(tmp_path, engines=0, addresses=[engine.address]) as stack:
        yield stack
        assert await stack.violations() == {}


def by_bytes(text: bytes) -> list[bytes]:
    """Cut a text into single bytes."""
    return [text[place : place + 1] for place in range(len(text))]


UNICODE = 'data: {"choices":[{"index":0,"delta":{"content":"žluťoučký 😀"}}]}\n\n'.encode()
STREAMS = [
    pytest.param(b"data: " + USAGE + b"\n\ndata: [DONE]\n\n", (11, 6), "ok", id="plain"),
    pytest.param(b"data: " + USAGE + b"\r\n\r\ndata: [DONE]\r\n\r\n", (11, 6), "ok", id="B08 crlf"),
    pytest.param(b"data:" + USAGE + b"  \n\ndata:[DONE] \r\n\r\n", (11, 6), "ok", id="B12 no space"),
    pytest.param(UNICODE + b"data: " + USAGE + b"\n\n", (11, 6), "ok", id="B10 split letters"),
    pytest.param(UNICODE + b"data: " + USAGE, (11, 6), "ok", id="B27 no final newline"),
    pytest.param(
        b': PROCESSING\n\nevent: ping\ndata: {"type":"ping"}\n\n:\nretry: 1000\nid: 4\n\n' + UNICODE,
        (None, None),
        "ok",
        id="B11 comments",
    ),
    pytest.param(
        b'data: {"choices":[],"usage":null}\n\ndata: {"usage":{"prompt_tokens":3}}\n\n'
        b'data: {"choices":[{"delta":null}]}\n\ndata: [DONE]\n\n',
        (3, None),
        "ok",
        id="B06 odd choices",
    ),
    pytest.param(
        UNICODE + b'data: { "error":{"message":"engine core died","code":500}}\n\ndata: [DONE]\n\n',
        (None, None),
        "stream_error",
        id="B14 error in 200",
    ),
    pytest.param(
        b'data: {"choices":[{"index":0,"delta":{"content":"the word \\"error\\": {"}}]}\n\n',
        (None, None),
        "ok",
        id="B14 the word alone",
    ),
    pytest.param(b"data: null\n\ndata: 5\n\ndata: true\n\n", (None, None), "ok", id="scalars"),
]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(("text", "tokens", "ending"), STREAMS)
async def test_streams_pass_and_are_understood(
    scripted: Stack, engine: Engine, text: bytes, tokens: tuple[int | None, int | None], ending: str, split: bool
) -> None:
    """The client gets the engine's bytes; usage and errors are read however the stream is written and cut."""
    engine.headers = {"content-type": "text/event-stream"}
    engine.chunks = by_bytes(text) if split else [text]
    _, _, received = await scripted.post("/v1/chat/completions", {**CHAT, "stream": True})
    assert received == text
    (outcome,) = await scripted.outcomes(1)
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens, outcome.ending) == (*tokens, ending)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "usage",
    ["null", '"oops"', '["a"]', '{"prompt_tokens":"12","completion_tokens":-3}', '{"prompt_tokens":1e300}', "{}"],
)
async def test_odd_usage_is_unknown(scripted: Stack, engine: Engine, usage: str) -> None:
    """Usage that makes no sense is unknown and harms nothing (B01, B02)."""
    text = f'{{"id":"x","choices":[],"usage":{usage}}}'.encode()
    engine.headers, engine.chunks = JSON, [text]
    _, _, received = await scripted.post("/v1/chat/completions", CHAT)
    assert received == text
    (outcome,) = await scripted.outcomes(1)
    assert outcome.ending == "ok"
    assert outcome.usage.cached_tokens is None
    assert not outcome.usage.completion_tokens


@pytest.mark.parametrize("status", [201, 202, 204, 206, 304, 307])
async def test_other_successes_are_no_failures(scripted: Stack, engine: Engine, status: int) -> None:
    """Status, headers and body of any success pass, and none counts against the engine (B24)."""
    engine.status, engine.headers, engine.chunks = status, {"location": "/elsewhere"}, [b"x"]
    async with scripted.client.post(f"{scripted.url}/v1/chat/completions", json=CHAT, allow_redirects=False) as answer:
        expected = b"" if status in {204, 304} else b"x"
        assert (answer.status, answer.headers["location"], await answer.read()) == (status, "/elsewhere", expected)
    (outcome,) = await scripted.outcomes(1)
    assert outcome.ending == "ok"


async def test_client_errors_do_not_eject(scripted: Stack, engine: Engine) -> None:
    """Sixty answers of 400 or 404 leave an engine in rotation (B17, B23)."""
    engine.status, engine.headers, engine.chunks = 404, JSON, [b'{"detail":"Not Found"}']
    for _ in range(40):
        await scripted.post("/v1/messages/count_tokens", CHAT)
    assert {outcome.ending for outcome in await scripted.outcomes(40)} == {"client_error"}
    assert scripted.logged("health_changed") == []


async def test_compressed_error_passes_as_it_is(scripted: Stack, engine: Engine) -> None:
    """A compressed answer is neither unpacked nor logged (B21)."""
    packed = gzip.compress(b'{"error":{"message":"SECRET"}}')
    engine.status, engine.headers, engine.chunks = 400, {**JSON, "content-encoding": "gzip"}, [packed]
    _, headers, received = await scripted.post("/v1/chat/completions", CHAT, accept_encoding="gzip;q=0.5, br")
    assert (headers["content-encoding"], received, engine.accepted) == ("gzip", packed, "gzip;q=0.5, br")
    (line,) = await scripted.finished(1)
    assert line["ending"] == "client_error"
    assert b"SECRET" not in scripted.output.getvalue()


@pytest.mark.parametrize(
    ("stream", "headers", "text"),
    [
        (True, JSON, b'{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6}}'),
        (False, {"content-type": "text/event-stream"}, b"data: " + USAGE + b"\n\n"),
    ],
    ids=["json for a stream", "stream for json"],
)
async def test_answer_is_read_by_its_own_type(
    scripted: Stack, engine: Engine, stream: bool, headers: dict[str, str], text: bytes
) -> None:
    """What was asked for does not matter, only what came (B25, A46)."""
    engine.headers, engine.chunks = headers, [text]
    await scripted.post("/v1/chat/completions", {**CHAT, "stream": stream})
    (outcome,) = await scripted.outcomes(1)
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (11, 6)


async def test_large_answers_are_not_held_back(scripted: Stack, engine: Engine) -> None:
    """An answer of 5 MB arrives whole (G17)."""
    text = json.dumps({"data": "x" * 5_000_000}).encode()
    engine.headers, engine.chunks = JSON, [text]
    _, _, received = await scripted.post("/v1/embeddings", CHAT)
    assert received == text


async def test_nothing_of_a_decision_is_shown_to_clients(scripted: Stack, engine: Engine) -> None:
    """No header tells an endpoint, a score or whether a prompt is cached (H10)."""
    engine.headers, engine.chunks = JSON, [b"{}"]
    _, headers, _ = await scripted.post("/v1/chat/completions", CHAT)
    names: Any = {name for name in headers if name.startswith(("x-gateway", "x-kvpicker", "x-envoy"))}
    assert names == set()


async def test_follow_up_of_a_response_goes_to_the_engine_that_has_it(stack: Stack) -> None:
    """A request that continues a response reaches the engine that made it (A53)."""
    first = await stack.post("/v1/responses", {"model": MODEL, "input": "hi"})
    await stack.finished(1)
    follow_up = {"model": MODEL, "input": "more", "previous_response_id": json.loads(first[2])["id"]}
    for number in range(6):
        await stack.post("/v1/responses", follow_up)
        lines = await stack.finished(number + 2)
        assert (lines[-1]["reason"], lines[-1]["endpoint"]) == ("previous_response", lines[0]["endpoint"])


@pytest.mark.parametrize(("last", "ending"), [(b"data: [DONE]\n\n", "ok"), (b"data: {}\n\n", "client_gone")])
async def test_a_client_that_leaves_behind_the_last_event_had_its_answer(
    scripted: Stack, engine: Engine, last: bytes, ending: str
) -> None:
    """OpenAI's clients hang up at [DONE], and Envoy may not have heard of the end of the stream by then."""
    engine.headers, engine.lingers = {"content-type": "text/event-stream"}, True
    engine.chunks = [b"data: " + USAGE + b"\n\n", last]
    body = {**CHAT, "stream": True}
    async with scripted.client.post(f"{scripted.url}/v1/chat/completions", json=body) as answer:
        assert (await answer.content.readuntil(last)).endswith(last)
        answer.close()
    (outcome,) = await scripted.outcomes(1)
    assert (outcome.ending, outcome.usage.prompt_tokens) == (ending, 11)
