"""Envoy's own errors have the shape of the API that was called, and kvpicker's are left as they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.type import v3 as envoy_type
from envoy_data_plane.google.protobuf import Struct

from ext_proc.bootstrap.command import EMPTY_POOL
from tests.unit.bootstrap.lab import Gateway, pick, running, until

pytestmark = pytest.mark.envoy

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages?beta=true"


def openai(code: str, kind: str) -> dict[str, Any]:
    """What remains of an OpenAI error without its message."""
    return {"error": {"type": kind, "param": None, "code": code}}


def anthropic(kind: str) -> dict[str, Any]:
    """What remains of an Anthropic error without its message."""
    return {"type": "error", "error": {"type": kind}}


async def refusal(gateway: Gateway, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and body of an error, after a look at its content type and message."""
    status, answer, body = await gateway.post(path, **headers)
    assert answer["content-type"] == "application/json"
    error = json.loads(body)
    assert error["error"].pop("message").endswith(".")
    return status, error


PICKER_GONE = {
    CHAT: openai("picker_unavailable", "server_error"),
    "/v1/messages/count_tokens": anthropic("overloaded_error"),
}


@pytest.mark.parametrize(("path", "expected"), PICKER_GONE.items(), ids=["openai", "anthropic"])
async def test_without_picker(closed: Gateway, path: str, expected: dict[str, Any]) -> None:
    """A gateway that fails closed answers 503 with a clear body and a Retry-After while no picker is there."""
    await closed.picker.stop()
    assert await refusal(closed, path) == (503, expected)
    _, headers, body = await closed.post(path)
    assert headers["retry-after"] == "1"
    assert b"endpoint picker is not available" in body


async def test_without_picker_open(gateway: Gateway) -> None:
    """A gateway that fails open serves by Envoy's own policy while no picker is there."""
    await gateway.picker.stop()
    assert [(await gateway.post())[0] for _ in range(5)] == [200] * 5


async def test_silent_picker() -> None:
    """A picker that does not answer in time is a 503 like one that is gone."""
    async with running(failure_mode="closed", message_timeout=0.05) as gateway:
        gateway.picker.delay = 0.5
        assert await refusal(gateway, CHAT) == (503, PICKER_GONE[CHAT])


async def test_wrong_answer(closed: Gateway) -> None:
    """A picker that breaks the protocol is a 503 like one that is gone."""
    closed.picker.script = lambda _: ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse())
    assert await refusal(closed, CHAT) == (503, PICKER_GONE[CHAT])


@pytest.mark.parametrize("mode", ["open", "closed"])
async def test_streams_outlive_the_picker(mode: str) -> None:
    """A stream that has begun runs to its end although the picker dies, whatever the failure mode."""
    gone = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await gone.wait()
        await response.write(b"data: 2\n\n")
        return response

    async with running(failure_mode=mode) as gateway:
        gateway.engine.handler = stream
        answer = asyncio.create_task(gateway.post())
        await until(lambda: gateway.engine.requests)
        await gateway.picker.stop()
        gone.set()
        assert (await answer)[2] == b"data: 1\n\ndata: 2\n\n"


NOBODY = {CHAT: openai("no_ready_endpoint", "server_error"), MESSAGES: anthropic("overloaded_error")}


@pytest.mark.parametrize(("path", "expected"), NOBODY.items(), ids=["openai", "anthropic"])
async def test_empty_pool(tmp_path: Path, path: str, expected: dict[str, Any]) -> None:
    """No engine at all is a 503."""
    file = tmp_path / "eds.json"
    file.write_text(json.dumps(EMPTY_POOL))
    async with running(endpoints_file=str(file)) as gateway:
        assert await refusal(gateway, path) == (503, expected)


RESET = {CHAT: openai("engine_unreachable", "server_error"), MESSAGES: anthropic("api_error")}


@pytest.mark.parametrize(("path", "expected"), RESET.items(), ids=["openai", "anthropic"])
async def test_reset(gateway: Gateway, path: str, expected: dict[str, Any]) -> None:
    """An engine that closes the connection once it has the request is a 503, and the request is not repeated."""

    async def abort(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    gateway.engine.handler = abort
    assert await refusal(gateway, path) == (503, expected)
    assert len(gateway.engine.requests) == 1


async def test_large_headers(gateway: Gateway) -> None:
    """Headers beyond Envoy's limit are the client's error."""
    status, error = await refusal(gateway, CHAT, x_large="y" * 70_000)
    assert (status, error) == (431, openai("bad_request", "invalid_request_error"))


def shed(request: ext_proc.ProcessingRequest) -> ext_proc.ProcessingResponse:
    """Refuse a request when its body is known, as kvpicker does."""
    if request.request_headers is not None:
        return ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())
    headers = {"content-type": "application/json", "retry-after": "7"}
    options = [
        core.HeaderValueOption(header=core.HeaderValue(key=key, raw_value=value.encode()))
        for key, value in headers.items()
    ]
    immediate = ext_proc.ImmediateResponse(
        status=envoy_type.HttpStatus(code=envoy_type.StatusCode.TooManyRequests),
        headers=ext_proc.HeaderMutation(set_headers=options),
        body=b'{"own": "%20 shape"}',
        details="shed",
    )
    marked = Struct.from_dict({"kvpicker": {"refused": "no_ready_endpoint"}})
    return ext_proc.ProcessingResponse(immediate_response=immediate, dynamic_metadata=marked)


@pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=["openai", "anthropic"])
async def test_refusal(gateway: Gateway, path: str) -> None:
    """A refusal that kvpicker has shaped itself passes as it is, with its headers, and is logged with its reason."""
    gateway.picker.script = shed
    status, headers, body = await gateway.post(path)
    assert (status, headers["retry-after"], body) == (429, "7", b'{"own": "%20 shape"}')
    assert headers["content-type"] == "application/json"
    entry = await gateway.entry()
    assert entry.response is not None
    assert entry.response.response_code_details == "shed"
    assert await gateway.rejected_mutations() == 0


async def test_engine_errors_pass(gateway: Gateway) -> None:
    """An engine's own error reaches the client as it is."""

    async def fail(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503, text="busy", headers={"retry-after": "3"})

    gateway.engine.handler = fail
    gateway.picker.script = pick(gateway.engine.address)
    status, headers, body = await gateway.post()
    assert (status, headers["retry-after"], body) == (503, "3", b"busy")
