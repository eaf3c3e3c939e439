"""Everything that breaks prefixes, in bodies as applications send them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ext_proc.analyze.breakers import Breaker, Breakers
from ext_proc.analyze.divergence import shared_beginning
from ext_proc.analyze.segments import segments
from tests.unit.analyze.bodies import RULES, TOOLS, chat, record, words

Body = dict[str, Any]


def study(bodies: Iterable[Body], *, show: bool = False) -> list[Breaker]:
    """Return what breaks the prefixes of bodies."""
    breakers = Breakers(show=show)
    for body in bodies:
        read = record(body)
        breakers.add(read.model, read.namespace, segments(read.prompt), read.prompt_tokens)
    return breakers.breakers(10)


def dated(number: int) -> Body:
    """Begin with the time."""
    return chat(f"Current time: 2026-11-29T17:{number:02}:07Z\n{RULES}", words(number, 60))


def spoken_date(number: int) -> Body:
    """Begin with a date as people write it, in one line."""
    return chat(f"Today is {number + 1} November 2026. {RULES.replace(chr(10), ' ')}", words(number, 60))


def weekday(number: int) -> Body:
    """Begin with the day of the week."""
    day = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")[number % 5]
    return chat(f"It is {day}.\n{RULES}", words(number, 60))


def epoch(number: int) -> Body:
    """Begin with seconds since 1970."""
    return chat(f"now={1_764_400_000 + 977 * number}\n{RULES}", words(number, 60))


def uuid(number: int) -> Body:
    """Begin with a request id."""
    generator = random.Random(number)
    parts = "-".join(generator.randbytes(size).hex() for size in (4, 2, 2, 2, 6))
    return chat(f"Request {parts}\n{RULES}", words(number, 60))


def nonce(number: int) -> Body:
    """Begin with a random token."""
    token = random.Random(number).randbytes(9).hex()
    return chat(f"[trace:a{token}] {RULES}", words(number, 60))


def counter(number: int) -> Body:
    """Begin with a count."""
    return chat(f"There are {number + 17} customers in the shop.\n{RULES}", words(number, 60))


def tool_order(number: int) -> Body:
    """Send the tools of a set, in the order of a hash table."""
    tools = list(TOOLS)
    random.Random(number).shuffle(tools)
    return chat(RULES, words(number, 60), tools=tools)


def tool_set(number: int) -> Body:
    """Leave a tool out now and then."""
    return chat(RULES, words(number, 60), tools=TOOLS[number % 2 :])


def key_order(number: int) -> Body:
    """Write the schema of the first tool with its keys in any order."""
    tools = copy.deepcopy(TOOLS)
    properties = tools[0]["function"]["parameters"]["properties"]
    if number % 2:
        tools[0]["function"]["parameters"]["properties"] = dict(reversed(properties.items()))
    return chat(RULES, words(number, 60), tools=tools)


def context_key_order(number: int) -> Body:
    """Put a JSON object into the system prompt, with its keys in any order."""
    context = ('{"shop": "north", "floor": 2}', '{"floor": 2, "shop": "north"}')[number % 2]
    return chat(f"Context: {context}\n{RULES}", words(number, 60))


def whitespace(number: int) -> Body:
    """Render the template with one blank more."""
    return chat(f"You serve{' ' * (1 + number % 2)}customers.\n{RULES}", words(number, 60))


def volatile_system(number: int) -> Body:
    """Put the customer's name in front of the rules."""
    return chat(f"The customer is {words(('name', number), 2)}.\n{RULES}", words(number, 60))


def documents_first(number: int) -> Body:
    """Put what was retrieved in front of constant instructions, in the user's message."""
    return chat("Answer.", f"Passages:\n{words(number, 120)}\nInstructions:\n{RULES}")


def trimmed(number: int) -> Body:
    """Send only the last six messages of a conversation that grows."""
    turns = [words(("turn", place), 60) for place in range(40)]
    return chat("Be terse.", *turns[2 * number : 2 * number + 7])


def inserted(number: int) -> Body:
    """Put a fresh memory in front of a conversation each time."""
    turns = [words(("turn", place), 60) for place in range(2 * number + 5)]
    return chat("Be terse.", *[words(("memory", place), 20) for place in range(number, -1, -1)], *turns)


def salted(number: int) -> Body:
    """Give every request a cache of its own."""
    return chat(RULES, words(number, 60), cache_salt=f"request-{number}")


SYSTEM = "messages[0] (system)"


@pytest.mark.parametrize(
    ("body", "kind", "where"),
    [
        (dated, "date or time", SYSTEM),
        (spoken_date, "date or time", SYSTEM),
        (weekday, "date or time", SYSTEM),
        (epoch, "date or time", SYSTEM),
        (uuid, "identifier or nonce", SYSTEM),
        (nonce, "identifier or nonce", SYSTEM),
        (counter, "number", SYSTEM),
        (tool_order, "order of tools", "tools"),
        (tool_set, "changing set of tools", "tools"),
        (key_order, "order of JSON keys", "tools"),
        (context_key_order, "order of JSON keys", SYSTEM),
        (whitespace, "whitespace", SYSTEM),
        (volatile_system, "changing system prompt", SYSTEM),
        (documents_first, "changing text before constant text", "messages[1] (user)"),
        (trimmed, "history trimmed at the front", "messages[1] (user)"),
        (inserted, "message inserted in front", "messages[1] (user)"),
        (salted, "different cache_salt or adapter", "request"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_breaks_a_prefix_is_named(body: Callable[[int], Body], kind: str, where: str) -> None:
    """The worst breaker is the one that was put in, and its place is told."""
    worst, *_ = study(body(number) for number in range(12))
    assert (worst.kind, worst.where) == (kind, where)
    assert worst.requests >= 5
    assert worst.lost_tokens >= 64


def test_the_place_of_the_difference_is_exact() -> None:
    """The first differing character counts from the beginning of the message; tokens from that of the prompt."""
    worst, *_ = study(dated(number) for number in range(9))
    assert worst.characters == len("Current time: 2026-11-29T17:0")
    assert worst.offset_tokens == (len("?system?") + worst.characters) // 4
    assert worst.requests == 8
    assert worst.lost_tokens == pytest.approx(len(RULES) / 4, rel=0.03)


def test_anthropic_bodies_are_studied_alike() -> None:
    """The system member is message 0."""
    bodies = [
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": f"Time: 09:{number:02}\n{RULES}"}],
            "messages": [{"role": "user", "content": words(number, 40)}],
        }
        for number in range(5)
    ]
    worst, *_ = study(bodies)
    assert (worst.kind, worst.where) == ("date or time", SYSTEM)


def test_clean_traffic_has_no_breakers() -> None:
    """Conversations that grow behind constant tools and rules part where they should."""
    bodies = [
        chat(RULES, *[words((who, turn), 50) for turn in range(2 * count + 1)], tools=TOOLS)
        for count in range(4)
        for who in range(10)
    ]
    assert study(bodies) == []


def test_different_applications_are_not_compared() -> None:
    """Prompts that have nothing in common say nothing about each other."""
    assert study(chat(words(("system", number), 100), words(number, 50)) for number in range(20)) == []


def test_models_are_not_compared_with_each_other() -> None:
    """The same prompt for two models cannot be shared by any engine."""
    assert study(dated(number) | {"model": f"model-{number}"} for number in range(8)) == []


def test_prompts_are_shown_only_on_request() -> None:
    """Without leave there is no text; with it, a short and printable one."""
    bodies = [chat(f"Secret {number}\x1b[31m:\n{RULES}", words(number, 60)) for number in range(10, 15)]
    (hidden,) = study(bodies)
    (shown,) = study(bodies, show=True)
    assert hidden.example == ""
    assert "Secret 1" in shown.example
    assert shown.example.isprintable()
    assert len(shown.example) < 400


def test_memory_is_bounded_on_a_long_stream() -> None:
    """What is kept does not grow with the traffic."""
    breakers = Breakers()
    pieces = [segments(record(chat(words(number, 40), words(-number, 30))).prompt) for number in range(400)]
    sizes = []
    for number in range(6000):
        breakers.add(f"model-{number}", (), pieces[number % 400], 100)
        sizes.append(len(breakers))
    assert max(sizes) < 256 + 20_000 + 200 + 1
    assert breakers.compared < 5000 + 1000 / 16 + 1


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_shared_beginnings_are_measured_exactly(size: int) -> None:
    """Whether they end inside a chunk, at its end or with the text."""
    assert shared_beginning("a" * size + "b", "a" * size + "c") == size
    assert shared_beginning("a" * size, "a" * size + "c") == size
    assert shared_beginning(b"a" * size, b"a" * size) == size
