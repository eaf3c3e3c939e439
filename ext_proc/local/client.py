"""A small client of the chat API that times its answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

MAX_ERROR: Final = 300
END_OF_STREAM: Final = b"[DONE]"


class Reply(msgspec.Struct, kw_only=True):
    """What came back for one request.

    Attributes:
        error: why it failed; empty if it did not.
        text: the answer.
        ttft: seconds until the first token; None if none came.
        prompt_tokens: as the engine counts them; None if it does not say.
        cached_tokens: how many of those it found in its cache; None if it does not say.
    """

    error: str = ""
    text: str = ""
    ttft: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


async def chat(session: aiohttp.ClientSession, url: str, body: dict[str, Any], request_id: str) -> Reply:
    """Send a chat request and follow its stream; whatever goes wrong becomes the reply's `error`."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json", "x-request-id": request_id}
    started = time.perf_counter()
    reply = Reply()
    try:
        path = f"{url}/v1/chat/completions"
        async with session.post(path, data=msgspec.json.encode(asked), headers=headers) as response:
            if response.status != HTTPStatus.OK:
                reply.error = f"status {response.status}: {_error(await response.read())}"
                return reply
            async for event in _events(response):
                _take(event, reply, time.perf_counter() - started)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reply.error = str(error) or type(error).__name__
    if not reply.error and reply.ttft is None:
        reply.error = "the stream held no token"
    return reply


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[_Event]:
    """Yield what can be understood of a stream of server-sent events."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != END_OF_STREAM:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    yield msgspec.json.decode(data, type=_Event)


def _take(event: _Event, reply: Reply, elapsed: float) -> None:
    if event.error is not None:
        reply.error = f"error in the stream: {_message(event.error)}"
    for choice in event.choices:
        delta = choice.delta or {}
        if reply.ttft is None and any(value for name, value in delta.items() if name != "role"):
            reply.ttft = elapsed
        reply.text += delta.get("content") or ""
    if event.usage is not None:
        reply.prompt_tokens = event.usage.prompt_tokens
        details = event.usage.prompt_tokens_details
        reply.cached_tokens = None if details is None else details.cached_tokens


def _error(body: bytes) -> str:
    """Find the message in an error body of the OpenAI shape, or show the body."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = body.decode("utf-8", "replace")
    return _message(value.get("error", value) if isinstance(value, dict) else value)


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:MAX_ERROR]
