"""Cases from public bug reports, from the bytes of requests to where they go."""

from __future__ import annotations

import json
import random
import string
from typing import Any

from ext_proc.core.hashing import PromptHasher
from ext_proc.core.model import InferenceRequest
from ext_proc.core.prompts import RequestHead, classify, parse
from tests.unit.core.builders import MODEL, Fleet, shares

CHAT = "/v1/chat/completions"


def asked(path: str = CHAT, **fields: Any) -> InferenceRequest:
    """Understand a request."""
    route = classify("POST", path)
    assert route is not None
    return parse(route, RequestHead(path=path), json.dumps({"model": MODEL} | fields).encode(), complete=True)


def letters(seed: str, count: int) -> str:
    """Make a text that shares nothing with that of another seed."""
    return "".join(random.Random(seed).choices(string.ascii_lowercase, k=count))


def user(content: Any) -> dict[str, Any]:
    """Make a message."""
    return {"role": "user", "content": content}


def test_a01_arguments_of_calls_take_part() -> None:
    """Two bodies that differ in the arguments of a call share what stands before it, and not what stands behind."""
    hasher = PromptHasher()

    def chain(query: str) -> list[Any]:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": query})}}
        turns = [user(letters("u", 2000)), {"role": "assistant", "content": None, "tool_calls": [call]}]
        return list(hasher.chain(asked(messages=[*turns, user(letters("v", 2000))]), None))

    rivers, lakes = chain("rivers"), chain("lakes")
    same = [one == other for one, other in zip(rivers, lakes, strict=True)]
    assert same == sorted(same, reverse=True)
    assert 0 < sum(same) < len(same)


def test_a40_token_ids_share_their_beginning() -> None:
    """Prompts with the first 128 ids in common have a beginning of their chain in common."""
    hasher = PromptHasher()
    one, other = ([*range(128), *range(seed, seed + 300)] for seed in (1000, 2000))
    chains = [hasher.chain(asked("/v1/completions", prompt=ids), None) for ids in (one, other)]
    assert chains[0][0] == chains[1][0]
    assert chains[0][-1] != chains[1][-1]


def test_a60_tools_tell_agents_apart() -> None:
    """Another agent's tools before the same messages give no hit; other order of keys around a tool gives one."""
    fleet, turns = Fleet(3), [{"role": "system", "content": letters("s", 3000)}, user("go")]
    schemas = [{"type": "object", "description": letters(seed, 6000)} for seed in "ab"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    turned = {"function": {"parameters": schemas[0], "name": "f"}, "type": "function"}
    first = fleet.serve(asked(messages=turns, tools=[tools[0]]))
    assert fleet.serve(asked(messages=turns, tools=[tools[1]])).hit_tokens == 0
    again = fleet.serve(asked(messages=turns, tools=[turned]))
    assert (again.chosen, again.hit_tokens > 1500) == (first.chosen, True)


def test_a62_pictures_that_differ_at_the_end_of_their_address_are_spread() -> None:
    """300 messages with one picture each do not crowd one of three endpoints."""
    fleet = Fleet(3)
    urls = [f"https://img.example/bucket/0000000000/pic{number:04d}.jpg" for number in range(300)]
    parts = [[{"type": "text", "text": "describe"}, {"type": "image_url", "image_url": {"url": url}}] for url in urls]
    assert max(shares([fleet.pick(asked(messages=[user(content)])) for content in parts]).values()) <= 135


def test_a64_messages_of_nothing_but_sound_are_spread() -> None:
    """50 recordings, each another, are 50 prompts."""
    fleet = Fleet(3)
    sounds = [{"data": letters(str(number), 30_000), "format": "wav"} for number in range(50)]
    made = [fleet.pick(asked(messages=[user([{"type": "input_audio", "input_audio": one}])])) for one in sounds]
    assert max(shares(made).values()) <= 25


def test_a73_a_clock_before_a_constant_prompt_claims_nothing() -> None:
    """Behind a time that changes with each request nothing is predicted, and load alone decides."""
    fleet, rest = Fleet(3), letters("constant", 8000)
    made = []
    for number in range(200):
        fleet.now += 0.05
        system = {"role": "system", "content": f"Now: 2026-11-29T10:00:{number / 20:06.3f} {rest}"}
        made.append(fleet.serve(asked(messages=[system, user(letters(str(number), 40))]), seconds=0.3))
    assert sum(decision.hit_tokens for decision in made) == 0
    assert max(shares(made).values()) <= 90
