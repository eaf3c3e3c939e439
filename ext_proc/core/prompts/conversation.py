"""Renders messages and their parts, of the OpenAI and the Anthropic API alike, into one canonical transcript."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.prompts.attachments import KINDS, attachment, embedded
from ext_proc.core.prompts.framing import (
    ARGUMENTS,
    CALL,
    ID,
    MESSAGE,
    NAME,
    OTHER,
    REASONING,
    SETTING,
    TEXT,
    ordered_json,
    stable_json,
    utf8,
    word,
)

_MAX_DEPTH = 16
"""Lists of parts inside lists of parts; deeper ones are rendered as JSON."""

_OPENINGS = {
    role: MESSAGE + role.encode() + TEXT for role in ("system", "developer", "user", "assistant", "tool", "function")
}
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", None})


class Transcript:
    """The pieces of a canonical conversation; appending a message only appends pieces."""

    __slots__ = ("_in_text", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._in_text = False

    def open(self, role: bytes) -> None:
        """Begin a message."""
        self.pieces += (MESSAGE, role)
        self._in_text = False

    def text(self, text: str) -> None:
        """Add text; texts that follow each other are one."""
        if text:
            if not self._in_text:
                self.pieces.append(TEXT)
                self._in_text = True
            self.pieces.append(utf8(text))

    def add(self, *pieces: bytes) -> None:
        """Add a framed piece that is no text."""
        self.pieces += pieces
        self._in_text = False

    def settings(self, **members: Any) -> None:
        """Add what a template is told beside the conversation; absent, null and empty members give nothing."""
        given = {name: value for name, value in members.items() if value}
        if given:
            self.add(SETTING, stable_json(given))

    def reasoning(self, text: Any) -> None:
        """Add what the model thought."""
        if text:
            self.add(REASONING, word(text))

    def call(self, name: Any, arguments: Any, call_id: Any) -> None:
        """Add a tool call; arguments are equal as an object and as a string that holds the object."""
        self.add(CALL, word(name), ARGUMENTS, _arguments(arguments))
        self.identify(call_id)

    def identify(self, call_id: Any) -> None:
        """Add the id that joins a call and its result."""
        if call_id is not None:
            self.add(ID, word(call_id))

    def messages(self, messages: list[Any]) -> None:
        """Add messages of a chat request or an Anthropic request."""
        pieces = self.pieces
        opening_of = _OPENINGS.get
        for message in messages:
            if type(message) is dict and len(message) == 2:  # noqa: PLR2004  # the fast lane: role and content
                role, content = message.get("role"), message.get("content")
                opening = opening_of(role) if type(role) is str else None
                if opening is not None and type(content) is str and content:
                    pieces += opening, content.encode("utf-8", "surrogatepass")
                    continue
            self.message(message)

    def message(self, message: Any) -> None:
        """Add one message of any shape."""
        if not isinstance(message, dict):
            self.add(MESSAGE, OTHER, stable_json(message))
            return
        role = word(message.get("role"))
        name = message.get("name")
        thought = message.get("reasoning_content") or message.get("reasoning")
        content = message.get("content")
        if name is None and not thought and isinstance(content, list):
            self._parts_with_results(role, content)
        else:
            self.open(role)
            if name is not None:
                self.add(NAME, word(name))
            self.reasoning(thought)
            self.content(content)
        images = message.get("images")
        if images:
            self.add(embedded(images))
        self._calls(message)
        self.identify(message.get("tool_call_id"))

    def content(self, content: Any, depth: int = 0) -> None:
        """Add the content of a message or a tool result: a string, a part, or a list of parts, perhaps nested."""
        if isinstance(content, str):
            self.text(content)
        elif isinstance(content, list) and depth < _MAX_DEPTH:
            for part in content:
                self.content(part, depth + 1)
        elif isinstance(content, dict):
            self._part(content)
        elif content is not None:
            self.add(OTHER, stable_json(content))

    def _parts_with_results(self, role: bytes, content: list[Any]) -> None:
        """Add a message whose tool results count as messages of their own, as they do in the OpenAI API."""
        is_open = False
        for part in content:
            if isinstance(part, dict) and part.get("type") == "tool_result":
                self.open(b"tool")
                self.content(part.get("content"))
                self.identify(part.get("tool_use_id"))
                is_open = False
                continue
            if not is_open:
                self.open(role)
                is_open = True
            self.content(part, 1)
        if not content:
            self.open(role)

    def _part(self, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if kind is not None and not isinstance(kind, str):
            self._other(part)
        elif kind in _TEXT_TYPES and isinstance(part.get("text"), str):
            self.text(part["text"])
        elif kind in KINDS:
            self.add(attachment(part))
        elif kind == "tool_use":
            self.call(part.get("name"), part.get("input"), part.get("id"))
        elif kind == "tool_result":
            self.content(part.get("content"), _MAX_DEPTH - 1)
            self.identify(part.get("tool_use_id"))
        elif kind == "thinking":
            self.reasoning(part.get("thinking"))
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            self.text(part["refusal"])
        else:
            self._other(part)

    def _other(self, part: dict[str, Any]) -> None:
        self.add(OTHER, stable_json({key: value for key, value in part.items() if key != "cache_control"}))

    def _calls(self, message: dict[str, Any]) -> None:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                self._call(call)
        elif calls is not None:
            self.add(OTHER, stable_json(calls))
        legacy = message.get("function_call")
        if legacy is not None:
            self._call(legacy)

    def _call(self, call: Any) -> None:
        if not isinstance(call, dict):
            self.add(CALL, OTHER, stable_json(call))
            return
        held = call.get("function") or call.get("custom")
        inner = held if isinstance(held, dict) else call
        self.call(inner.get("name"), inner.get("arguments", inner.get("input")), call.get("id"))


def _arguments(arguments: Any) -> bytes:
    if isinstance(arguments, str):
        if not arguments:
            return b"{}"
        if not arguments.startswith("{"):
            return utf8(arguments)
        try:
            arguments = msgspec.json.decode(utf8(arguments))
        except (msgspec.DecodeError, RecursionError):
            return utf8(arguments)
    return b"{}" if arguments is None else ordered_json(arguments)
