"""Cuts canonical prompts into tools and messages, the pieces that people know them by."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.prompts.framing import MEDIA, MESSAGE, SETTING, TOKENS, TOOL

Kind: TypeAlias = Literal["tool", "message", "prompt", "setting"]

SYSTEM_ROLES = frozenset({"system", "developer"})

_KINDS: dict[bytes, Kind] = {TOOL: "tool", MESSAGE: "message", SETTING: "setting"}
_FRAMING = re.compile(rb"[\xc0\xc1\xf5-\xff]")
_FRAMING_BYTES = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])
_TO_SPACES = bytes.maketrans(_FRAMING_BYTES, b" " * len(_FRAMING_BYTES))


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A tool definition, a message or a whole plain prompt.

    Attributes:
        kind: which of these it is.
        name: role of a message, name of a tool.
        data: its canonical bytes.
        digest: equal for equal data.
    """

    kind: Kind
    name: str
    data: bytes
    digest: int

    @property
    def is_system(self) -> bool:
        """Tell whether the application wrote it rather than a user or a model."""
        return self.kind == "message" and self.name in SYSTEM_ROLES


def segments(prompt: bytes) -> list[Segment]:
    """Cut a canonical prompt; those of token ids, with or without media in front, and empty ones give nothing."""
    if prompt[:1] in {b"", TOKENS, MEDIA}:
        return []
    # Tools stand in front of all messages.
    head, *messages = prompt.split(MESSAGE)
    setting, *tools = head.split(TOOL)
    pieces = [setting, *(TOOL + tool for tool in tools), *(MESSAGE + message for message in messages)]
    return [_segment(piece) for piece in pieces if piece]


def label(pieces: Sequence[Segment], place: int) -> str:
    """Name a segment as an author of requests would: `messages[2] (user)`; messages count the system prompt."""
    piece = pieces[place]
    if piece.kind == "tool":
        return "tools"
    if piece.kind != "message":
        return piece.kind
    first = next(number for number, other in enumerate(pieces) if other.kind == "message")
    return f"messages[{place - first}] ({piece.name or 'no role'})"


def readable(data: bytes) -> str:
    """Turn canonical bytes into text; framing becomes spaces."""
    return data.translate(_TO_SPACES).decode("utf-8", "replace")


def _segment(piece: bytes) -> Segment:
    kind = _KINDS.get(piece[:1], "prompt")
    name = _FRAMING.split(piece, maxsplit=2)[1] if kind in {"tool", "message"} else b""
    return Segment(kind, _name(name), piece, xxh3_64_intdigest(piece))


@functools.lru_cache(maxsize=1024)
def _name(name: bytes) -> str:
    return name[:64].decode("utf-8", "replace")
