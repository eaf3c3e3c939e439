"""Envoy repeats what no engine has begun, and beyond that only what may run twice."""

from __future__ import annotations

import pytest
from aiohttp import web

from ext_proc.bootstrap import EnvoyOptions
from ext_proc.core.errors import ConfigError
from tests.unit.bootstrap.lab import Gateway, pick, until


async def abort(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection in place of an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.envoy
@pytest.mark.parametrize(
    ("path", "status", "asked"),
    [
        ("/v1/chat/completions", 503, [1, 0, 0]),
        ("/v1/embeddings", 200, [1, 1, 0]),
        ("/v1/embeddings?x=1", 200, [1, 1, 0]),
        ("/openai/v1/embeddings", 503, [1, 0, 0]),
    ],
)
async def test_a_reset_is_repeated_only_where_that_does_no_harm(
    trio: Gateway, path: str, status: int, asked: list[int]
) -> None:
    """An engine that had the whole request and reset is followed by the next for embeddings, never for generation."""
    trio.engines[0].handler = abort
    trio.picker.script = pick(*(engine.address for engine in trio.engines))
    assert (await trio.post(path))[0] == status
    assert [len(engine.requests) for engine in trio.engines] == asked


@pytest.mark.envoy
async def test_failed_attempts_are_logged_and_others_are_not(trio: Gateway) -> None:
    """The log of attempts has the endpoint, what was wrong with it and the request's name, as soon as it failed."""
    refusing, serving, _ = trio.engines
    await refusing.stop()
    trio.picker.script = pick(serving.address)
    assert (await trio.post())[0] == 200
    trio.picker.script = pick(refusing.address, serving.address)
    assert (await trio.post())[0] == 200
    last = [await trio.entry() for _ in range(2)][-1]
    await until(lambda: trio.picker.attempts)
    (attempt,) = trio.picker.attempts
    common = attempt.common_properties
    assert common is not None
    assert common.upstream_remote_address is not None
    assert common.upstream_remote_address.socket_address is not None
    assert f"127.0.0.1:{common.upstream_remote_address.socket_address.port_value}" == refusing.address
    assert common.response_flags is not None
    assert common.response_flags.upstream_connection_failure
    assert attempt.request is not None
    assert last.request is not None
    assert attempt.request.request_id == last.request.request_id != ""


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/generate", "/v1/responses", "/v1/audio/speech"]
)
def test_generation_may_not_be_repeated(path: str) -> None:
    """Nobody can switch on what would generate twice."""
    with pytest.raises(ConfigError, match=f"`{path}` generates"):
        EnvoyOptions(repeatable=("/v1/embeddings", path))


@pytest.mark.parametrize("path", ["v1/embeddings", "", "/v1/embeddings?a=b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    """A spelling that could never match a request is an error, not a setting without effect."""
    with pytest.raises(ConfigError, match="no path"):
        EnvoyOptions(repeatable=(path,))
