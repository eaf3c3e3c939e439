"""Chat requests as bytes, the same in every process and every run."""

from __future__ import annotations

import functools
import json
import random

MODEL = "bench/chat"
PATH = "/v1/chat/completions"

SMALL = 4096
LARGE = 400 * 1024

_COUNTS = {SMALL: (1000, 50), LARGE: (96, 12)}
"""Bodies of a size, and how many different system prompts they share."""

_TEXT_BYTES = 4_000_000
_SYLLABLES = ("ba", "do", "ki", "lu", "men", "no", "pra", "ri", "sto", "ta", "ver", "xi")


@functools.cache
def _text() -> str:
    """Make a long text of short words, ASCII and free of JSON escapes."""
    generator = random.Random(1)  # noqa: S311  reproducible on purpose
    vocabulary = ["".join(generator.choices(_SYLLABLES, k=generator.randint(1, 4))) for _ in range(2000)]
    words = generator.choices(vocabulary, k=_TEXT_BYTES // 6)
    return " ".join(words)


def _passage(generator: random.Random, size: int) -> str:
    start = generator.randrange(len(_text()) - size)
    return _text()[start : start + size]


@functools.cache
def chat_bodies(size: int, *, stream: bool = False) -> list[bytes]:
    """Make the chat completion bodies of exactly `size` bytes, SMALL or LARGE, that ask for streams or do not.

    Two fifths of each are a system prompt that it shares with others; the rest is its own.
    """
    count, systems = _COUNTS[size]
    generator = random.Random(size)  # noqa: S311  reproducible on purpose
    shared = [_passage(generator, size * 2 // 5) for _ in range(systems)]
    bodies = [_body(generator, shared[number % systems], size, stream=stream) for number in range(count)]
    generator.shuffle(bodies)
    return bodies


def _body(generator: random.Random, system: str, size: int, *, stream: bool) -> bytes:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": _passage(generator, size // 4)},
        {"role": "assistant", "content": _passage(generator, size // 8)},
        {"role": "user", "content": ""},
    ]
    body = {"model": MODEL, "messages": messages, "max_tokens": 256, "temperature": 0.7}
    if stream:
        body["stream"] = True
    messages[-1]["content"] = _passage(generator, size - len(json.dumps(body)))
    return json.dumps(body).encode()


def http_request(body: bytes) -> bytes:
    """Frame a body as an HTTP/1.1 request."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: gateway.example\r\nUser-Agent: benchmark/1\r\nAccept: application/json\r\n"
        f"Authorization: Bearer not-a-secret\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
