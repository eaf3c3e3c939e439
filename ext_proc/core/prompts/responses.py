"""Reads the bodies of OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

import msgspec

from ext_proc.core.prompts.body import Body
from ext_proc.core.prompts.conversation import Transcript
from ext_proc.core.prompts.framing import OTHER, PREVIOUS, REASONING, digest, estimate_tokens, utf8, word
from ext_proc.core.prompts.jsonbody import short
from ext_proc.core.prompts.tools import canonical_tools

_ASSISTANT = b"assistant"
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


class ResponseBody(Body, gc=False):
    """The body of `/v1/responses`; `instructions` are the system message and a string as input is a user message."""

    input: Any = None
    instructions: Any = None
    tools: msgspec.Raw = msgspec.Raw()
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    reasoning: Any = None
    max_output_tokens: Any = None

    def read(self) -> tuple[bytes, int]:
        """Render the conversation as the chat API would carry it.

        A request that continues a response or a stored conversation has its history in the engine, so the id of that
        stands for it: the prompt equals none that starts with the same input.
        """
        if not self.input or not isinstance(self.input, str | list):
            return b"", 0
        items = _Items()
        effort = self.reasoning.get("effort") if isinstance(self.reasoning, dict) else None
        if effort or self.prompt:
            items.settings(effort=effort, prompt=self.prompt)
        items.add(canonical_tools(self.tools))
        if self.instructions:
            items.message({"role": "system", "content": self.instructions})
        if self.previous_response_id is not None:
            items.add(PREVIOUS, word(self.previous_response_id))
        if self.conversation is not None:
            items.add(PREVIOUS, PREVIOUS, word(self._conversation()))
        if isinstance(self.input, str):
            items.message({"role": "user", "content": self.input})
        else:
            for item in self.input:
                items.item(item)
        prompt = b"".join(items.pieces)
        return prompt, estimate_tokens(len(prompt))

    def limits(self) -> tuple[Any, ...]:
        """Return the limit of this API."""
        return (self.max_output_tokens,)

    def session(self) -> str:
        """Return the body's own name for a conversation, or the one that the engine has for it."""
        named = self._conversation()
        return super().session() or (short(named) if isinstance(named, str) else "")

    def _conversation(self) -> Any:
        return self.conversation.get("id") if isinstance(self.conversation, dict) else self.conversation

    def previous(self) -> Any:
        """Return the id of the response that the request continues."""
        return self.previous_response_id


class _Items(Transcript):
    """A transcript of items, where one assistant turn is spread over several."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = ""

    def item(self, item: Any) -> None:
        """Add an item of any type."""
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in _CALLS:
            self._continue_turn()
            self.call(item.get("name"), item.get("arguments", item.get("input")), item.get("call_id"))
            self._turn = "called"
        elif kind in _RESULTS:
            self.open(b"tool")
            self.content(item.get("output"))
            self.identify(item.get("call_id"))
            self._turn = ""
        elif kind == "reasoning":
            self._continue_turn()
            self._reasoning(item)
            self._turn = "reasoned"
        else:
            self._message(item)

    def _message(self, item: Any) -> None:
        if self._turn == "reasoned" and isinstance(item, dict) and item.get("role") == "assistant":
            self.content(item.get("content"))
        elif isinstance(item, dict) and item.get("type") in (None, "message"):
            self.message(item)
        else:
            self.open(b"")
            self.content(item, 1)
        self._turn = "spoken" if isinstance(item, dict) and item.get("role") == "assistant" else ""

    def _continue_turn(self) -> None:
        if not self._turn:
            self.open(_ASSISTANT)

    def _reasoning(self, item: dict[str, Any]) -> None:
        texts = [part.get("text") for held in (item.get("content"), item.get("summary")) for part in _parts(held)]
        text = "".join(text for text in texts if isinstance(text, str))
        sealed = item.get("encrypted_content")
        if text:
            self.reasoning(text)
        elif isinstance(sealed, str):
            self.add(REASONING, OTHER, digest(utf8(sealed)))


def _parts(held: Any) -> list[dict[str, Any]]:
    return [part for part in held if isinstance(part, dict)] if isinstance(held, list) else []
