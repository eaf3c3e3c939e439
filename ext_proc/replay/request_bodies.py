"""Reads JSON lines of request bodies, as clients sent them or wrapped with what else is known of them."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ext_proc.core.hashing import BYTES_PER_TOKEN, BlockSizes, PromptHasher
from ext_proc.core.model import GENERATING, InferenceRequest
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.replay.lines import TYPICAL_OUTPUT, bounded, json_object, seconds_of
from ext_proc.sim.workload import SimRequest

BLOCK_TOKENS = 64
UNTIMED = float("nan")
"""The time of a request whose line has none."""


class WrappedBody(msgspec.Struct):
    """A line that says more than the body does; every field but `body` may be left out.

    Attributes:
        body: the JSON body, as an object or as its text.
        timestamp: when it came: seconds, milliseconds since 1970, or an ISO 8601 time.
        path: the URL path, such as `/v1/messages`; guessed from the body where it is missing.
        output_tokens: how many tokens were generated.
        session: the conversation it belongs to.
    """

    body: msgspec.Raw
    timestamp: float | str | None = None
    path: str = ""
    output_tokens: int | None = None
    session: str = ""


class RequestBodies:
    """OpenAI and Anthropic request bodies, one in a line, understood and hashed as the server does it.

    A line is the body itself, perhaps with a member `timestamp`, or a WrappedBody. Tokens are estimated by four bytes
    each. Where nobody says how much was generated it is 300 tokens, or the client's limit if that is lower.
    """

    name: ClassVar[str] = "bodies"
    block_tokens: ClassVar[int] = BLOCK_TOKENS
    note: ClassVar[str] = "prompt tokens are estimated from the text, 4 bytes each"

    def __init__(self) -> None:
        size = BLOCK_TOKENS * BYTES_PER_TOKEN
        self._hasher = PromptHasher(BlockSizes(((size, size),), size))
        self._wrapped = msgspec.json.Decoder(WrappedBody)

    @staticmethod
    def recognises(line: bytes) -> bool:
        """Tell whether a line is a body or wraps one."""
        members = json_object(line)
        return "body" in members or bool(_guessed_path(members))

    def read(self, line: bytes) -> SimRequest:
        """Return the request of a line; `at` is not a number where the line has no time.

        Raises:
            ValueError: it is no generation request, or a field is wrong.
        """
        members = json_object(line)
        if not members:
            raise ValueError("no JSON object; a line is a request body, or {timestamp, path, body, output_tokens}")
        wrapped = self._unwrap(line, members)
        body = bytes(wrapped.body)
        request = _understood(wrapped, body)
        blocks = tuple(self._hasher.chain(request))
        tokens = max(request.prompt_tokens, len(blocks) * BLOCK_TOKENS, 1)
        at = UNTIMED if wrapped.timestamp is None else seconds_of(wrapped.timestamp, "timestamp")
        output = _output(wrapped, request)
        return SimRequest(at, bounded(tokens, "prompt tokens", 1), output, blocks, session=wrapped.session)

    def _unwrap(self, line: bytes, members: dict[str, Any]) -> WrappedBody:
        if "body" not in members:
            time = members.get("timestamp")
            if isinstance(time, bool) or not isinstance(time, int | float | str | None):
                raise ValueError("`timestamp` is no time; write it as 2026-01-31T23:59:59.5Z or as seconds")
            return WrappedBody(msgspec.Raw(line), time, _guessed_path(members))
        try:
            wrapped = self._wrapped.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{error}; fields are body, timestamp, path, output_tokens, session") from error
        body = members["body"]
        if isinstance(body, str):
            wrapped.body = msgspec.Raw(body.encode("utf-8", "surrogatepass"))
            body = json_object(bytes(wrapped.body))
        if not wrapped.path:
            wrapped.path = _guessed_path(body if isinstance(body, dict) else {})
        return wrapped


def _understood(wrapped: WrappedBody, body: bytes) -> InferenceRequest:
    if not wrapped.path:
        raise ValueError("the body has neither `messages` nor `prompt` nor `input`; name its `path`")
    route = classify("POST", wrapped.path)
    if route is None or route.operation not in GENERATING:
        raise ValueError("its path generates no tokens; leave such requests out")
    request = parse(route, RequestHead(wrapped.path), body, complete=True)
    if request.unhashed is not None:
        raise ValueError(f"its prompt cannot be read ({request.unhashed}); the body must be whole and plain JSON")
    return request


def _guessed_path(body: dict[str, Any]) -> str:
    """Return the path that a body was probably sent to; empty if it looks like none of them."""
    if "messages" in body:
        return "/v1/messages" if "system" in body else "/v1/chat/completions"
    if "prompt" in body:
        return "/v1/completions"
    return "/v1/responses" if "input" in body else ""


def _output(wrapped: WrappedBody, request: InferenceRequest) -> int:
    if wrapped.output_tokens is not None:
        return max(bounded(wrapped.output_tokens, "output_tokens", 0), 1)
    limit = request.output_tokens
    return max(min(TYPICAL_OUTPUT, TYPICAL_OUTPUT if limit is None else limit), 1)
