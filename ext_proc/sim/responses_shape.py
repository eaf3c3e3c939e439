"""Answers of OpenAI's responses API, as vLLM gives them."""

from __future__ import annotations

from collections.abc import Sequence

from ext_proc.sim.shapes import Answer, Context, Document, Event, Tally


def responses_usage(tally: Tally) -> Document:
    """The usage block of the responses API."""
    return {
        "input_tokens": tally.prompt,
        "input_tokens_details": {"cached_tokens": tally.cached, "cache_write_tokens": 0},
        "output_tokens": tally.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tally.prompt + tally.completion,
    }


class ResponseShape:
    """`/v1/responses`; the events of a stream are numbered."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._item_id = f"msg_{context.id}"
        self._answer: Answer | None = None
        self._sequence_number = -1

    def whole(self, answers: Sequence[Answer], tally: Tally) -> Document:
        """The response object."""
        return self._finished(answers[0], tally)

    def opening(self) -> list[Event]:
        """The response object twice, still empty, before anything was computed."""
        empty = self._response("in_progress", [])
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
        ]

    def first(self, index: int, tally: Tally) -> list[Event]:
        """The start of the only output item and of its only part."""
        del tally
        item = self._item("in_progress", [])
        return [
            self._event("response.output_item.added", output_index=index, item=item),
            self._part_event("response.content_part.added", part=_text_part("")),
        ]

    def delta(self, index: int, text: str, tally: Tally) -> list[Event]:
        """A piece of text."""
        del index, tally
        return [self._part_event("response.output_text.delta", delta=text, logprobs=[])]

    def finish(self, answer: Answer, tally: Tally) -> list[Event]:
        """The ends of text, part and item, each with the whole text."""
        del tally
        self._answer = answer
        part = _text_part(answer.text)
        return [
            self._part_event("response.output_text.done", text=answer.text, logprobs=[]),
            self._part_event("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=answer.index, item=self._item("completed", [part])),
        ]

    def closing(self, tally: Tally) -> list[Event]:
        """The whole response object with its usage."""
        if self._answer is None:
            return []
        name = "response.incomplete" if self._answer.limited else "response.completed"
        return [self._event(name, response=self._finished(self._answer, tally))]

    def error(self, message: str) -> list[Event]:
        """The responses API's error event."""
        return [self._event("error", code="server_error", message=message, param=None)]

    def _finished(self, answer: Answer, tally: Tally) -> Document:
        status = "incomplete" if answer.limited else "completed"
        document = self._response(status, [self._item("completed", [_text_part(answer.text)])])
        if answer.limited:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._context.put_usage(document, responses_usage(tally))

    def _response(self, status: str, output: list[Document]) -> Document:
        return {
            "id": f"resp_{self._context.id}",
            "object": "response",
            "created_at": self._context.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "model": self._context.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }

    def _item(self, status: str, content: list[Document]) -> Document:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part_event(self, name: str, **fields: object) -> Event:
        return self._event(name, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, name: str, **fields: object) -> Event:
        self._sequence_number += 1
        return Event({"type": name, "sequence_number": self._sequence_number, **fields}, name)


def _text_part(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
