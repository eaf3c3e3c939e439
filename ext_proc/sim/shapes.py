"""What answers look like: the parts every API's shape is made from, and the interface that the server drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Document = dict[str, Any]


class Event(NamedTuple):
    """One server-sent event; the data is a JSON value, or bytes that are sent as they are."""

    data: Any
    name: str | None = None


DONE = Event(b"[DONE]")


@dataclass(slots=True)
class Tally:
    """Tokens of a request so far."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished answer."""

    index: int
    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    limited: bool


UsageFilter = Callable[[Document, Document], Document]
"""Puts a usage block (second) into a document (first); faults put something odd there."""


def put_usage(document: Document, usage: Document) -> Document:
    """Put a usage block where all APIs have it."""
    document["usage"] = usage
    return document


@dataclass(frozen=True, slots=True)
class Context:
    """What a shape needs to know of the request it answers.

    Attributes:
        id: unique part of the ids in the answer.
        created: Unix time.
        model: the model's name as the client wrote it.
        put_usage: how usage blocks get into documents.
        include_usage: whether a stream ends with its usage.
        continuous_usage: whether every event carries it.
        batch: whether a list is expected even for one answer.
    """

    id: str
    created: int
    model: str
    put_usage: UsageFilter = put_usage
    include_usage: bool = False
    continuous_usage: bool = False
    batch: bool = False


class Shape(Protocol):
    """The answers of one API; each request has its own."""

    def __init__(self, context: Context) -> None: ...

    def whole(self, answers: Sequence[Answer], tally: Tally) -> Any:
        """The document that answers a request without a stream."""

    def opening(self) -> list[Event]:
        """Events that a stream sends before anything was computed."""

    def first(self, index: int, tally: Tally) -> list[Event]:
        """Events before the first token of an answer."""

    def delta(self, index: int, text: str, tally: Tally) -> list[Event]:
        """Events that carry text of an answer."""

    def finish(self, answer: Answer, tally: Tally) -> list[Event]:
        """Events after the last token of an answer."""

    def closing(self, tally: Tally) -> list[Event]:
        """Events at the end of the stream."""

    def error(self, message: str) -> list[Event]:
        """Events that tell of an error in mid-stream."""
