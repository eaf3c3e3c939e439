"""The simulated model's chat template: tools, system text and messages with their roles, as one text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from ext_proc.sim.errors import bad_request

_END = "<|end|>\n"
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def render_chat(data: dict[str, Any]) -> bytes:
    """The prompt of an OpenAI chat request (also of `/tokenize` with messages).

    Raises:
        ApiError: `messages` is not a list of objects with a role (400).
    """
    messages = _objects(data.get("messages"), "messages")
    return _join(_tools(data.get("tools")), *map(_message, messages))


def render_anthropic(data: dict[str, Any]) -> bytes:
    """The prompt of an Anthropic messages request; equal to that of the same conversation in OpenAI's form.

    Raises:
        ApiError: `messages` is not a list of objects with a role (400).
    """
    messages = _objects(data.get("messages"), "messages")
    tools = data.get("tools")
    if isinstance(tools, list):
        tools = [_function(tool) if isinstance(tool, dict) else tool for tool in tools]
    system = _turn("system", _content(data["system"])) if data.get("system") else []
    return _join(_tools(tools), system, *map(_message, messages))


def render_responses(data: dict[str, Any]) -> bytes:
    """The prompt of an OpenAI responses request.

    Raises:
        ApiError: `input` is neither text nor a list of objects (400).
    """
    tools = _tools(data.get("tools"))
    system = _turn("system", _content(data["instructions"])) if data.get("instructions") else []
    given = data.get("input")
    if isinstance(given, str):
        return _join(tools, system, _turn("user", [given]))
    return _join(tools, system, *map(_item, _objects(given, "input")))


# Functions below return pieces, so that a large text is copied once, by the join.


def _join(*turns: Iterable[str]) -> bytes:
    return "".join([*chain.from_iterable(turns), "<|assistant|>\n"]).encode("utf-8", "surrogatepass")


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise bad_request(f"{name} must be a non-empty list of objects", name)
    return value


def _turn(role: str, pieces: Iterable[str]) -> list[str]:
    return [f"<|{role}|>\n", *pieces, _END]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _tools(tools: Any) -> list[str]:
    if not tools:
        return []
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    return _turn("tools", (_json(tool) + "\n" for tool in tools))


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name")}
    if "description" in tool:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("input_schema")
    return {"type": "function", "function": function}


def _message(message: dict[str, Any]) -> list[str]:
    role = message.get("role")
    if not isinstance(role, str):
        raise bad_request("every message needs a role", "messages")
    pieces = _content(message.get("content"))
    if message.get("tool_calls"):
        pieces.append(_json(message["tool_calls"]))
    return _turn(role, pieces)


def _item(item: dict[str, Any]) -> list[str]:
    if isinstance(item.get("role"), str):
        return _message(item)
    return _turn(str(item.get("type", "item")), [_json(item)])


def _content(content: Any) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [_part(part) for part in content]
    raise bad_request("content must be text or a list of parts", "messages")


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    # Images and the like count as a few tokens that depend on their content.
    return f"<|{xxh3_64_hexdigest(msgspec.json.encode(part))}|>"
