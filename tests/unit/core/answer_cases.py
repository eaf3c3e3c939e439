"""Loads the answers of tests/cases/answers.jsonl, written as engines and gateways are known to write them."""

from __future__ import annotations

from pathlib import Path

import msgspec

_FILE = Path(__file__).parents[2] / "cases" / "answers.jsonl"


class AnswerCase(msgspec.Struct):
    """An answer of status 200, and what is to be understood of it: prompt, generated and cached tokens, and its end."""

    id: str
    body: str
    usage: tuple[int | None, int | None, int | None]
    ending: str
    type: str = "text/event-stream"
    path: str = "/v1/chat/completions"

    def __str__(self) -> str:
        return self.id

    def data(self) -> bytes:
        """Return the exact bytes of the body."""
        return self.body.encode()


def load() -> list[AnswerCase]:
    """Read all cases."""
    return [msgspec.json.decode(line, type=AnswerCase) for line in _FILE.read_bytes().splitlines()]
