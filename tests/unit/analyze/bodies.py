"""Request bodies as applications send them, and the records that the analysis makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from ext_proc.analyze.formats import LineReader
from ext_proc.analyze.record import Record
from ext_proc.core.hashing import PromptHasher

RULES = """\
You are the assistant of a bookshop; answer in at most three sentences and never invent a title.
Quote prices in euros, name the shelf where a book stands, and offer to reserve it until the evening.
If a customer asks for a book that is out of stock, say so, and propose two books by the same author.
Never talk about other shops, about staff, or about what a customer bought before; stay friendly.
When you are not sure which edition is meant, ask one short question before you search the stock.
Use the tools for stock and prices; do not guess what they would answer, and do not call them twice."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{what} Call it once for each title, with the title exactly as the customer wrote it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "the title of the book"},
                    "edition": {"type": "string", "description": "hardcover or paperback"},
                },
                "required": ["title"],
            },
        },
    }
    for name, what in (
        ("stock", "Look up how many copies of a book are there."),
        ("price", "Look up what a book costs today."),
        ("reserve", "Keep a copy of a book until the evening."),
    )
]

_WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "islet",
    "joist",
    "knoll",
    "ledge",
    "marsh",
    "notch",
    "orchard",
    "plume",
]


def words(seed: object, count: int) -> str:
    """Make text that shares nothing with that of another seed but its words."""
    generator = random.Random(repr(seed))
    return " ".join(generator.choice(_WORDS) for _ in range(count))


def chat(system: str, *turns: str, **members: Any) -> dict[str, Any]:
    """Make a chat body; turns are the user's and the assistant's by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return {"model": "acme/chat-8b", "messages": [{"role": "system", "content": system}, *messages], **members}


def record(body: dict[str, Any] | bytes, **wrapper: Any) -> Record:
    """Read a body as the analysis does."""
    line = body if isinstance(body, bytes) else json.dumps({"body": body, **wrapper}).encode()
    return LineReader(PromptHasher()).read(line)


def hashed(chain: Sequence[int], *, size: int = 100, rest: int = 0, **fields: Any) -> Record:
    """Make a record of blocks that are given, each of `size` tokens."""
    sizes = [size] * len(chain)
    return Record(model="m", chain=list(chain), sizes=sizes, prompt_tokens=sum(sizes) + rest or 1, **fields)
