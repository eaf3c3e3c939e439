"""Request bodies of the generation APIs, read into what the engine is asked to do."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ext_proc.sim import tokens
from ext_proc.sim.errors import bad_request
from ext_proc.sim.templates import render_anthropic, render_chat, render_responses

MAX_CHOICES: Final = 128


@dataclass(frozen=True, slots=True)
class Ask:
    """What a generation request asks for.

    Attributes:
        prompts: the rendered prompts; all but batches of completions have one.
        choices: answers per prompt.
        max_tokens: upper limit of generated tokens; None if the request sets none.
        exact: whether exactly `max_tokens` tokens are wanted (vLLM's `ignore_eos`).
        min_tokens: lower limit of generated tokens.
        stream: whether the answer is wanted as server-sent events.
        include_usage: whether the stream's end must carry the usage.
        continuous_usage: whether every event of the stream must carry the usage.
        salt: separates this request's cache from that of others (vLLM's `cache_salt`).
        batch: whether the prompts came as a list, which SGLang answers with a list.
    """

    prompts: tuple[bytes, ...]
    choices: int = 1
    max_tokens: int | None = None
    exact: bool = False
    min_tokens: int = 0
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    salt: str = ""
    batch: bool = False

    def output_tokens(self, digest: int) -> int:
        """Tokens that the answer to the prompt with this digest will have."""
        wanted = tokens.natural_length(digest)
        if self.exact and self.max_tokens is not None:
            wanted = self.max_tokens
        wanted = max(wanted, self.min_tokens)
        return wanted if self.max_tokens is None else min(wanted, self.max_tokens)


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body.

    Raises:
        ApiError: the body is not JSON, or not an object (400).
    """
    try:
        data = msgspec.json.decode(body.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise bad_request("the body must be a JSON object")
    return data


def integer(data: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int | None:
    """An optional whole number of a request.

    Raises:
        ApiError: it is something else, or out of its bounds (400).
    """
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise bad_request(f"{name} must be an integer of at least {low}", name)
    if high is not None and value > high:
        raise bad_request(f"{name} must be at most {high}", name)
    return value


def prompt_list(value: Any, name: str) -> tuple[bytes, ...]:
    """Prompts given as text, token ids, or a list of either.

    Raises:
        ApiError: it is none of these, or empty (400).
    """
    if isinstance(value, str):
        return (_encode(value, name),)
    if not isinstance(value, list) or not value:
        raise bad_request(f"{name} must be a string, a list of token ids, or a list of these", name)
    if isinstance(value[0], int):
        return (_from_ids(value, name),)
    return tuple(_encode(one, name) if isinstance(one, str) else _from_ids(one, name) for one in value)


def read_chat(data: dict[str, Any]) -> Ask:
    """`/v1/chat/completions`."""
    rendered = render_chat(data)
    limit = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    return _openai_ask(data, (rendered,), integer(data, limit, 1))


def read_completion(data: dict[str, Any]) -> Ask:
    """`/v1/completions`."""
    return _openai_ask(data, prompt_list(data.get("prompt"), "prompt"), integer(data, "max_tokens", 1))


def read_response(data: dict[str, Any]) -> Ask:
    """`/v1/responses`."""
    limit = integer(data, "max_output_tokens", 1)
    return _common(data, (render_responses(data),), limit, include_usage=True)


def read_message(data: dict[str, Any]) -> Ask:
    """`/v1/messages`."""
    limit = integer(data, "max_tokens", 1)
    if limit is None:
        raise bad_request("max_tokens: Field required", "max_tokens")
    return _common(data, (render_anthropic(data),), limit, include_usage=True)


def read_generate(data: dict[str, Any]) -> Ask:
    """SGLang's `/generate`."""
    name = "text" if data.get("text") is not None else "input_ids"
    prompts = prompt_list(data.get(name), name)
    sampling = data.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise bad_request("sampling_params must be an object", "sampling_params")
    merged = {"stream": data.get("stream"), **sampling}
    given = data[name]
    return Ask(
        prompts,
        max_tokens=integer(sampling, "max_new_tokens", 1),
        exact=sampling.get("ignore_eos") is True,
        min_tokens=integer(sampling, "min_new_tokens", 0) or 0,
        stream=merged["stream"] is True,
        include_usage=True,
        batch=isinstance(given, list) and not isinstance(given[0], int),
    )


def _openai_ask(data: dict[str, Any], prompts: tuple[bytes, ...], limit: int | None) -> Ask:
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    return _common(
        data,
        prompts,
        limit,
        choices=integer(data, "n", 1, MAX_CHOICES) or 1,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
    )


def _common(
    data: dict[str, Any],
    prompts: tuple[bytes, ...],
    limit: int | None,
    *,
    include_usage: bool,
    continuous_usage: bool = False,
    choices: int = 1,
) -> Ask:
    stream, salt = data.get("stream"), data.get("cache_salt")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("stream must be true or false", "stream")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise bad_request("cache_salt must be a non-empty string", "cache_salt")
    return Ask(
        prompts,
        choices=choices,
        max_tokens=limit,
        exact=data.get("ignore_eos") is True,
        min_tokens=integer(data, "min_tokens", 0) or 0,
        stream=bool(stream),
        include_usage=include_usage,
        continuous_usage=continuous_usage and include_usage,
        salt=salt or "",
    )


def _encode(text: str, name: str) -> bytes:
    if not text:
        raise bad_request(f"{name} must not be empty", name)
    return text.encode("utf-8", "surrogatepass")


def _from_ids(ids: Any, name: str) -> bytes:
    if not isinstance(ids, list) or not ids:
        raise bad_request(f"{name} must hold text or token ids", name)
    try:
        return tokens.from_ids(ids)
    except ValueError as error:
        raise bad_request(str(error), name) from error


READERS: Final[Mapping[str, Callable[[dict[str, Any]], Ask]]] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/responses": read_response,
    "/v1/messages": read_message,
    "/generate": read_generate,
}
