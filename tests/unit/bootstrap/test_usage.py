"""Token usage reaches the access log for every API, and no answer harms Envoy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from ext_proc.core.names import USAGE_NAMESPACE, USAGE_WORDS_KEY
from tests.unit.bootstrap.lab import Gateway, Handler

pytestmark = pytest.mark.envoy

OPENAI = {"prompt_tokens": 120, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 96}}
ANTHROPIC = {"input_tokens": 24, "output_tokens": 1, "cache_read_input_tokens": 96}
RESPONSES = {"input_tokens": 120, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 96}}
READ_OPENAI = {"prompt": 120, "completion": 5, "cached": 96}
READ_ANTHROPIC = {"anthropic_input": 24, "anthropic_output": 1, "anthropic_cached": 96}


def event(data: Any, end: str = "\n\n") -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(data)}{end}".encode()


def answers(*chunks: bytes, kind: str = "text/event-stream", pause: float = 0) -> Handler:
    """An engine that answers in chunks, with a pause between them that keeps them apart on the way."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(pause)
        return response

    return handler


async def read(gateway: Gateway, handler: Handler, body: bytes) -> dict[str, Any]:
    """The usage in the access log of an answer that arrived whole."""
    gateway.engine.handler = handler
    status, _, received = await gateway.post()
    assert (status, received) == (200, body)
    words = (await gateway.metadata()).get(USAGE_NAMESPACE, {}).get(USAGE_WORDS_KEY, "")
    pairs = (word.split("=") for word in words.split())
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


JSON_ANSWERS = {
    "openai": ({"id": "chatcmpl-1", "usage": OPENAI}, READ_OPENAI),
    "anthropic": ({"id": "msg_1", "usage": ANTHROPIC}, READ_ANTHROPIC),
    "responses": ({"id": "resp_1", "usage": RESPONSES}, READ_OPENAI | {"response_id": "resp_1"}),
    "partial": ({"usage": {"completion_tokens": 25}}, {"completion": 25}),
    "null": ({"usage": None}, {}),
    "text": ({"usage": "oops"}, {}),
    "list": ({"usage": ["a"]}, {}),
    "numbers as text": ({"usage": {"prompt_tokens": "12"}}, {}),
    "negative and huge": ({"usage": {"prompt_tokens": -3, "completion_tokens": 1e30}}, {}),
    "fraction and bool": ({"usage": {"prompt_tokens": 1.5, "completion_tokens": True}}, {}),
    "array": ([], {}),
    "null document": (None, {}),
    "quoted in text": ({"content": json.dumps({"usage": OPENAI})}, {}),
    "brackets in text": ({"content": "{[", "usage": None}, {}),
    "5 MB": ({"pad": "x" * 5_000_000, "usage": OPENAI}, READ_OPENAI),
}


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"], ids=["plain", "charset"])
@pytest.mark.parametrize(("answer", "expected"), JSON_ANSWERS.values(), ids=JSON_ANSWERS.keys())
async def test_json(gateway: Gateway, answer: Any, expected: dict[str, Any], kind: str) -> None:
    """Usage is read from a JSON answer of any size, and nonsense is read as nothing."""
    body = json.dumps(answer).encode()
    assert await read(gateway, answers(body, kind=kind), body) == expected


CUT = json.dumps({"choices": [], "usage": OPENAI}).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (CUT[:-3], {"cut": 1}),
        (CUT[:10], {"cut": 1}),
        (b" \n{", {"cut": 1}),
        (b"[1, 2", {"cut": 1}),
        (CUT + b"\n  \n", READ_OPENAI),
        (b"[1, 2] ", {}),
        (b"5", {}),
        (b"   ", {}),
    ],
    ids=["end", "beginning", "one brace", "list", "white space after it", "whole list", "no object", "nothing"],
)
async def test_a_json_answer_that_is_cut_is_told(gateway: Gateway, body: bytes, expected: dict[str, Any]) -> None:
    """An engine that promises too few bytes is found out by what is missing; Envoy itself takes it for whole."""
    halves = body[: len(body) // 2], body[len(body) // 2 :]
    assert await read(gateway, answers(*halves, kind="application/json", pause=0.01), body) == expected


async def test_what_is_compressed_is_not_told_to_be_cut(gateway: Gateway) -> None:
    """Its last byte means nothing."""

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(
            body=b"{no bracket", headers={"content-type": "application/json", "content-encoding": "aes128gcm"}
        )

    gateway.engine.handler = handler
    status, _, received = await gateway.post()
    assert (status, received) == (200, b"{no bracket")
    assert USAGE_NAMESPACE not in await gateway.metadata()


STREAMS = {
    "openai": ([event({"choices": []}), event({"usage": None}), event({"usage": OPENAI})], READ_OPENAI),
    "crlf": ([event({"usage": OPENAI}, "\r\n\r\n"), b"data: [DONE]\r\n\r\n"], READ_OPENAI | {"done": 1}),
    "bare cr": ([event({"usage": OPENAI}, "\r\r"), b"data: [DONE]\r\r"], READ_OPENAI | {"done": 1}),
    "no space": ([b'data:{"usage":{"prompt_tokens":2}}  \n\n', b"data:[DONE] \r\n\r\n"], {"prompt": 2, "done": 1}),
    "done in two pieces": ([event({"usage": OPENAI}), b"data: [DO", b"NE]\n\n"], READ_OPENAI | {"done": 1}),
    "done in text": ([event({"delta": "\ndata: [DONE] event: message_stop"})], {}),
    "anthropic's end": ([b"event: message_stop\n", event({"type": "message_stop"})], {"done": 1}),
    "end of a response": ([b"event: response.incomplete\n", event({"response": {}})], {"done": 1}),
    "no last newline": ([event({"choices": []}), event({"usage": OPENAI}, "")], READ_OPENAI),
    "counted on": (
        [event({"usage": {"prompt_tokens": 9, "completion_tokens": n}}) for n in range(4)],
        {"prompt": 9, "completion": 3},
    ),
    "anthropic": (
        [event({"message": {"usage": ANTHROPIC}}), event({"usage": {"output_tokens": 17}})],
        READ_ANTHROPIC | {"anthropic_output": 17},
    ),
    "zero at the end": (
        [event({"message": {"usage": ANTHROPIC}}), event({"usage": {"input_tokens": 0, "output_tokens": 17}})],
        READ_ANTHROPIC | {"anthropic_output": 17},
    ),
    "responses": (
        [
            event({"response": {"id": "resp_1", "usage": None}}),
            event({"response": {"output": "x" * 100_000, "usage": RESPONSES}}),
        ],
        READ_OPENAI | {"response_id": "resp_1"},
    ),
    "2 MB event": ([event({"pad": "x" * 2_000_000, "usage": OPENAI})], READ_OPENAI),
    "comments": ([b": PROCESSING\n\n", b":\n", b"retry: 1\nid: 4\n\n", event({"usage": OPENAI})], READ_OPENAI),
    "quoted in text": ([event({"delta": 'data: {"error": 1} "usage": {"prompt_tokens": 7}'})], {}),
    "error": ([event({"choices": []}), event({"error": {"message": "engine died"}})], {"failed": 1}),
    "anthropic error": ([b"event: error\n", event({"type": "error", "error": {}})], {"failed": 1}),
    "error is null": ([event({"error": None})], {}),
}


@pytest.mark.parametrize(("chunks", "expected"), STREAMS.values(), ids=STREAMS.keys())
async def test_stream(gateway: Gateway, chunks: list[bytes], expected: dict[str, Any]) -> None:
    """Usage is read from a stream, however it is framed and cut; so are errors that come after a 200."""
    assert await read(gateway, answers(*chunks), b"".join(chunks)) == expected


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_byte_by_byte(gateway: Gateway, kind: str) -> None:
    """Usage is read from an answer that arrives in single bytes, also where a cut goes through a letter."""
    body = 'data: {"delta": "žluťoučký 😀", "usage": {"prompt_tokens": 11, "completion_tokens": 6}}\n\n'.encode()
    chunks = [bytes([byte]) for byte in body]
    assert await read(gateway, answers(*chunks, kind=kind, pause=0.001), body) == {"prompt": 11, "completion": 6}


SCALARS = ["null", "true", "5", '"token"', "[]", "{", "{}", "", "[DONE]", "NaN", "[" * 50_000]


async def test_any_event_is_survived(gateway: Gateway) -> None:
    """No event, JSON scalars included, ends Envoy; the next answer is read as usual."""
    chunks = [f"data: {text}\n\n".encode() for text in SCALARS]
    assert await read(gateway, answers(*chunks), b"".join(chunks)) == {"done": 1}
    assert gateway.envoy.running
    body = event({"usage": OPENAI})
    assert await read(gateway, answers(body), body) == READ_OPENAI


async def test_other_content_is_left_alone(gateway: Gateway) -> None:
    """Answers that are neither JSON nor events are not read."""
    body = json.dumps({"usage": OPENAI}).encode()
    assert await read(gateway, answers(body, kind="text/plain"), body) == {}
