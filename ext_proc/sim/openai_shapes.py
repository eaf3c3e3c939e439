"""Answers of OpenAI's chat and text completions, as vLLM gives them, and of SGLang's /generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ext_proc.sim.errors import ApiError, openai_error
from ext_proc.sim.shapes import DONE, Answer, Context, Document, Event, Tally


def openai_usage(tally: Tally, *, details: bool = True) -> Document:
    """OpenAI's usage block, with the cached tokens that vLLM reports under `--enable-prompt-tokens-details`."""
    usage: Document = {
        "prompt_tokens": tally.prompt,
        "total_tokens": tally.prompt + tally.completion,
        "completion_tokens": tally.completion,
    }
    if details:
        usage["prompt_tokens_details"] = {"cached_tokens": tally.cached}
    return usage


def finish_reason(answer: Answer) -> str:
    """Why generation ended."""
    return "length" if answer.limited else "stop"


class _OpenAiShape:
    """What chat and text completions have in common."""

    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._id = f"{self.prefix}-{context.id}"

    def _choice(self, answer: Answer) -> Document:
        raise NotImplementedError

    def _delta(self, index: int, text: str, reason: str | None) -> Document:
        raise NotImplementedError

    def whole(self, answers: Sequence[Answer], tally: Tally) -> Document:
        """The completion object."""
        document = self._document(self.whole_object, [self._choice(answer) for answer in answers])
        return self._context.put_usage(document, openai_usage(tally))

    def opening(self) -> list[Event]:
        """Nothing: the first chunk comes with the first token."""
        return []

    def first(self, index: int, tally: Tally) -> list[Event]:
        """Nothing."""
        del index, tally
        return []

    def delta(self, index: int, text: str, tally: Tally) -> list[Event]:
        """A chunk with text."""
        return [self._chunk([self._delta(index, text, None)], tally)]

    def finish(self, answer: Answer, tally: Tally) -> list[Event]:
        """A chunk with the reason of the end."""
        return [self._chunk([self._delta(answer.index, "", finish_reason(answer))], tally)]

    def closing(self, tally: Tally) -> list[Event]:
        """The usage, if asked for, and the mark of the end."""
        if not self._context.include_usage:
            return [DONE]
        document = self._document(self.chunk_object, [])
        return [Event(self._context.put_usage(document, openai_usage(tally))), DONE]

    def error(self, message: str) -> list[Event]:
        """The error frame of vLLM in a stream that began with 200."""
        return [Event(openai_error(ApiError(500, message))), DONE]

    def _chunk(self, choices: list[Document], tally: Tally) -> Event:
        document = self._document(self.chunk_object, choices)
        if self._context.continuous_usage:
            self._context.put_usage(document, openai_usage(tally, details=False))
        return Event(document)

    def _document(self, kind: str, choices: list[Document]) -> Document:
        context = self._context
        return {
            "id": self._id,
            "object": kind,
            "created": context.created,
            "model": context.model,
            "choices": choices,
        }


class ChatShape(_OpenAiShape):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self, index: int, tally: Tally) -> list[Event]:
        """A chunk with the role and no text."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [self._chunk([choice], tally)]

    def _choice(self, answer: Answer) -> Document:
        message: Document = {"role": "assistant", "content": answer.text, "refusal": None, "tool_calls": []}
        return {
            "index": answer.index,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(answer),
            "stop_reason": None,
        }

    def _delta(self, index: int, text: str, reason: str | None) -> Document:
        return {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}


class CompletionShape(_OpenAiShape):
    """`/v1/completions`."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _choice(self, answer: Answer) -> Document:
        return self._delta(answer.index, answer.text, finish_reason(answer))

    def _delta(self, index: int, text: str, reason: str | None) -> Document:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}


class GenerateShape:
    """SGLang's `/generate`: every event repeats the whole text so far."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._texts: dict[int, str] = {}

    def whole(self, answers: Sequence[Answer], tally: Tally) -> Any:
        """One document, or a list of them if the prompts were a list."""
        del tally
        documents = [self._finished(answer) for answer in answers]
        return documents if self._context.batch else documents[0]

    def opening(self) -> list[Event]:
        """Nothing."""
        return []

    def first(self, index: int, tally: Tally) -> list[Event]:
        """Nothing."""
        del tally
        self._texts[index] = ""
        return []

    def delta(self, index: int, text: str, tally: Tally) -> list[Event]:
        """The whole text so far."""
        self._texts[index] += text
        meta = self._meta(index, tally.prompt, tally.completion, tally.cached, None)
        return [Event({"text": self._texts[index], "meta_info": meta})]

    def finish(self, answer: Answer, tally: Tally) -> list[Event]:
        """The whole text with the reason of the end."""
        del tally
        return [Event(self._finished(answer))]

    def closing(self, tally: Tally) -> list[Event]:
        """The mark of the end."""
        del tally
        return [DONE]

    def error(self, message: str) -> list[Event]:
        """SGLang's error frame in a stream that began with 200."""
        return [Event({"error": {"message": message, "code": 500}}), DONE]

    def _finished(self, answer: Answer) -> Document:
        reason: Document = {"type": finish_reason(answer)}
        if answer.limited:
            reason["length"] = answer.tokens
        meta = self._meta(answer.index, answer.prompt_tokens, answer.tokens, answer.cached_tokens, reason)
        return {"text": answer.text, "meta_info": meta}

    def _meta(self, index: int, prompt: int, completion: int, cached: int, reason: Document | None) -> Document:
        return {
            "id": f"{self._context.id}-{index}",
            "finish_reason": reason,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cached_tokens": cached,
        }
