"""Answers of Anthropic's messages API, as vLLM gives them."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.sim.errors import ApiError, anthropic_error
from ext_proc.sim.shapes import Answer, Context, Document, Event, Tally


def anthropic_usage(tally: Tally) -> Document:
    """Anthropic's usage block: `input_tokens` are those that were not read from the cache."""
    return {
        "input_tokens": tally.prompt - tally.cached,
        "output_tokens": tally.completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached,
    }


def _stop_reason(answer: Answer) -> str:
    return "max_tokens" if answer.limited else "end_turn"


class MessageShape:
    """`/v1/messages`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stop_reason = "end_turn"

    def whole(self, answers: Sequence[Answer], tally: Tally) -> Document:
        """The message object."""
        answer = answers[0]
        return self._message([{"type": "text", "text": answer.text}], _stop_reason(answer), tally)

    def opening(self) -> list[Event]:
        """Nothing: vLLM knows the usage of `message_start` only with the first token."""
        return []

    def first(self, index: int, tally: Tally) -> list[Event]:
        """The start of the message with its input tokens, and of its only content block."""
        before = Tally(tally.prompt, tally.cached, 0)
        block = {"type": "text", "text": ""}
        return [
            _event("message_start", message=self._message([], None, before)),
            _event("content_block_start", index=index, content_block=block),
        ]

    def delta(self, index: int, text: str, tally: Tally) -> list[Event]:
        """A piece of text."""
        del tally
        return [_event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})]

    def finish(self, answer: Answer, tally: Tally) -> list[Event]:
        """The end of the content block."""
        del tally
        self._stop_reason = _stop_reason(answer)
        return [_event("content_block_stop", index=answer.index)]

    def closing(self, tally: Tally) -> list[Event]:
        """The reason of the end, the final usage, and the end of the message."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        document = {"type": "message_delta", "delta": delta}
        self._context.put_usage(document, anthropic_usage(tally))
        return [Event(document, "message_delta"), _event("message_stop")]

    def error(self, message: str) -> list[Event]:
        """Anthropic's error event."""
        return [Event(anthropic_error(ApiError(500, message)), "error")]

    def _message(self, content: list[Document], stop_reason: str | None, tally: Tally) -> Document:
        document: Document = {
            "id": f"msg_{self._context.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._context.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
        }
        return self._context.put_usage(document, anthropic_usage(tally))


def _event(name: str, **fields: object) -> Event:
    return Event({"type": name, **fields}, name)
