"""Reads public traces of token counts: Mooncake's JSON lines and Azure's CSV."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from ext_proc.replay.lines import COARSE_BLOCK, Unshared, bounded, json_object, seconds_of
from ext_proc.sim.workload import SimRequest

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class _MooncakeLine(msgspec.Struct):
    timestamp: _Milliseconds
    input_length: int
    output_length: int
    hash_ids: tuple[_BlockId, ...]


class Mooncake:
    """Mooncake's JSON lines: times in milliseconds, prompts as ids of blocks of 512 tokens."""

    name: ClassVar[str] = "mooncake"
    block_tokens: ClassVar[int] = 512
    note: ClassVar[str] = ""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_MooncakeLine)

    @staticmethod
    def recognises(line: bytes) -> bool:
        """Tell whether a line has the ids of blocks."""
        return "hash_ids" in json_object(line)

    def read(self, line: bytes) -> SimRequest:
        """Return the request of a line; the id of a last block that is not full is left out.

        Raises:
            ValueError: a field is missing or wrong.
        """
        try:
            found = self._decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(
                f"{error}; a line is {{timestamp, input_length, output_length, hash_ids}}, timestamp in milliseconds"
            ) from error
        tokens = bounded(found.input_length, "input_length", 1)
        whole = tokens // self.block_tokens
        if len(found.hash_ids) < whole:
            raise ValueError(
                f"`hash_ids` has {len(found.hash_ids)} blocks of 512 tokens, but `input_length` has {whole}; "
                "the trace must have an id for each"
            )
        output = bounded(found.output_length, "output_length", 0)
        return SimRequest(found.timestamp / 1e3, tokens, max(output, 1), found.hash_ids[:whole])


class Azure:
    """Azure's CSV of 2023 and 2024: times and token counts, nothing of the content."""

    name: ClassVar[str] = "azure"
    block_tokens: ClassVar[int] = COARSE_BLOCK
    note: ClassVar[str] = "the trace says nothing of content: every prompt is taken as unique, nothing can be cached"

    def __init__(self) -> None:
        self._unshared = Unshared()

    @staticmethod
    def recognises(line: bytes) -> bool:
        """Tell whether a line is the header."""
        return _is_header(line)

    def read(self, line: bytes) -> SimRequest | None:
        """Return the request of a line; None for the header.

        Raises:
            ValueError: the line has other columns, or a value is wrong.
        """
        if _is_header(line):
            return None
        columns = line.decode("utf-8", "replace").strip().split(",")
        if len(columns) != 3:  # noqa: PLR2004  as the message says
            raise ValueError(f"{len(columns)} columns; expected are TIMESTAMP,ContextTokens,GeneratedTokens")
        at = seconds_of(columns[0], "TIMESTAMP")
        prompt = bounded(_whole(columns[1], "ContextTokens"), "ContextTokens", 1)
        output = bounded(_whole(columns[2], "GeneratedTokens"), "GeneratedTokens", 0)
        return SimRequest(at, prompt, max(output, 1), self._unshared.blocks(prompt, self.block_tokens))


def _is_header(line: bytes) -> bool:
    return line.lstrip(b"\xef\xbb\xbf").upper().startswith(b"TIMESTAMP,CONTEXTTOKENS")


def _whole(text: str, name: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):  # noqa: PLR2004  no count needs so many digits
        raise ValueError(f"`{name}` is no whole number of tokens")
    return int(text)
