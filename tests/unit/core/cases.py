"""Loads the request bodies of tests/cases/bodies.jsonl, re-created from public bug reports of proxies and engines."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

_FILE = Path(__file__).parents[2] / "cases" / "bodies.jsonl"


class BodyCase(msgspec.Struct):
    """One request, and what is to be understood of it."""

    id: str
    method: str
    path: str
    model: str | None
    unhashed: str | None
    truncated: bool
    headers: dict[str, str] = {}
    body: str = ""
    body_b64: str = ""
    body_gen: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.id

    def data(self) -> bytes:
        """Return the exact bytes of the body."""
        if self.body_b64:
            return base64.b64decode(self.body_b64)
        if self.body_gen is None:
            return self.body.encode("utf-8", "surrogatepass")
        g = self.body_gen
        nested = "nest" in g
        middle = g["nest"] * g["depth"] + g["core"] + g["close"] * g["depth"] if nested else g["repeat"] * g["times"]
        return str(g["prefix"] + middle + g["suffix"]).encode()


def load() -> list[BodyCase]:
    """Read all cases."""
    return [msgspec.json.decode(line, type=BodyCase) for line in _FILE.read_bytes().splitlines()]
