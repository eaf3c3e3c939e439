"""Makes text of strangers fit for a log line, a label or a page."""

from __future__ import annotations

MAX_CHARACTERS = 128


def printable(text: str) -> str:
    """Cut text to 128 characters and escape what does not print: controls, line ends and lone surrogates."""
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def counted(count: int, noun: str) -> str:
    """Write a number with its noun, in the plural unless it is one: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
