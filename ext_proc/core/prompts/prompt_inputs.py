"""Renders and weighs prompts that are text, token ids, or lists of either."""

from __future__ import annotations

from typing import Any

from ext_proc.core.prompts.framing import (
    BYTES_PER_TOKEN,
    OTHER,
    SETTING,
    TEXT,
    TOKENS,
    digest,
    estimate_tokens,
    pack_ids,
    stable_json,
    utf8,
)


def read_prompts(prompts: Any) -> tuple[bytes, int]:
    """Render the first prompt that is not empty, and count the tokens of all: exactly for ids, estimated for text."""
    batch = prompts if isinstance(prompts, list) and not _is_ids(prompts) else [prompts]
    first, total = b"", 0
    for prompt in batch:
        if first:
            total += weigh(prompt)
            continue
        first = _render(prompt)
        if first:
            total += (len(first) - 1) // BYTES_PER_TOKEN if first[:1] == TOKENS else estimate_tokens(len(first) - 1)
    return first, total


def kept_end(prompt: bytes, tokens: int, limit: Any) -> tuple[bytes, int]:
    """Cut a prompt as `truncate_prompt_tokens` does: its end is kept, which begins like no longer prompt's end."""
    if limit is None or type(limit) is not int or not 0 < limit < tokens:
        return prompt, tokens
    return SETTING + digest(prompt) + prompt[-limit * BYTES_PER_TOKEN :], limit


def weigh(value: Any) -> int:
    """Count the tokens of any JSON value: each number of a list of ids, and the text of all other strings.

    Data URLs count nothing, because what they cost has nothing to do with their length.
    """
    ids = size = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            size += 0 if item.startswith("data:") else len(item) if item.isascii() else len(utf8(item))
        elif isinstance(item, list):
            if _is_ids(item):
                ids += len(item)
            else:
                waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
    return ids + estimate_tokens(size)


def _is_ids(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], int | float)


def _render(prompt: Any) -> bytes:
    if isinstance(prompt, str):
        return TEXT + utf8(prompt) if prompt else b""
    if isinstance(prompt, list):
        return TOKENS + pack_ids(prompt) if _is_ids(prompt) else _other(prompt)
    return b"" if prompt is None else _other(prompt)


def _other(prompt: Any) -> bytes:
    return OTHER + stable_json(prompt) if prompt else b""
