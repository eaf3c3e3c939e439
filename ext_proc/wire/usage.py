"""What a gateway's filters read from an answer → Usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf.struct_pb2 import Struct

from ext_proc.core.answer_scan import MOST_TOKENS
from ext_proc.core.model import Ending, Usage
from ext_proc.core.names import USAGE_WORDS_KEY
from ext_proc.core.status_endings import ending_of_failure

NO_USAGE = Usage()

_TEXTS = ("response_id", "failed")

Words: TypeAlias = Mapping[str, str | float]


def read_words(metadata: Struct) -> Words:
    """Read the findings: one text of words, or, from stock filters, a number or text for each word."""
    fields = metadata.fields
    text = fields[USAGE_WORDS_KEY].string_value
    if text:
        return dict([word.split("=", 1) for word in text.split() if "=" in word])
    numbers = {name: value.number_value for name, value in fields.items() if value.HasField("number_value")}
    return {**numbers, **{name: fields[name].string_value for name in _TEXTS if name in fields}}


def read_failure(words: Words) -> Ending:
    """Read how a request ended whose answer carried an error."""
    return ending_of_failure(_tokens(words, "failed") or 0)


def read_usage(words: Words) -> Usage:
    """Read token counts; Anthropic counts cached tokens, read and written, beside its input tokens, OpenAI among."""
    if "anthropic_input" in words:
        cached, uncached = _tokens(words, "anthropic_cached"), _tokens(words, "anthropic_input")
        prompt = None if uncached is None else uncached + (cached or 0) + (_tokens(words, "anthropic_created") or 0)
        return Usage(prompt, _tokens(words, "anthropic_output"), cached)
    return Usage(_tokens(words, "prompt"), _tokens(words, "completion"), _tokens(words, "cached"))


def _tokens(words: Words, name: str) -> int | None:
    value = words.get(name)
    if value is None:
        return None
    try:
        count = int(value)
    except (ValueError, OverflowError):
        return None
    return count if 0 <= count <= MOST_TOKENS else None
