"""Conversations of several turns over a few requests at a time, the same for every contestant."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

PATH = "/v1/chat/completions"
TIMEOUT_S = 300.0
"""For one request; a machine with other work on it is slow, not broken."""

_TEXT = """
river harbour lantern copper violet engine quiet orchard paper winter signal meadow carbon thread
window stone market planet silver garden bridge candle forest mirror anchor cotton desert ladder
pepper rocket saddle timber
"""
_WORDS = tuple(_TEXT.split())


class Plan(NamedTuple):
    """What is sent.

    Attributes:
        sessions: conversations.
        turns: requests of each.
        at_once: requests under way at a time, at most.
        sharing: conversations that begin with the same system prompt.
        system: words of a system prompt.
        question: words of a user's turn, the least and the most.
        answer: words of an assistant's turn in the history, the least and the most.
        tokens: tokens of an answer.
        think: seconds between the answer and the next turn, at most.
    """

    sessions: int = 16
    turns: int = 5
    at_once: int = 4
    sharing: int = 4
    system: int = 150
    question: tuple[int, int] = (40, 160)
    answer: tuple[int, int] = (20, 60)
    tokens: int = 16
    think: float = 4.0


class Answer(NamedTuple):
    """What came back of a request, and after how many seconds; a problem if it failed."""

    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    problem: str = ""


class Conversation:
    """One session: its turns are known in advance, so that they are the same whoever answers.

    Args:
        plan: how long everything is.
        seed: other seeds are other words.
        number: which session of the plan.
    """

    def __init__(self, plan: Plan, seed: str, number: int) -> None:
        shared = random.Random(f"{seed} system {number // plan.sharing}")  # noqa: S311  reproducible on purpose
        own = random.Random(f"{seed} session {number}")  # noqa: S311  as above
        self.thinks = [own.random() * plan.think for _ in range(plan.turns)]
        self._system = _text(shared, plan.system)
        self._questions = [_text(own, own.randint(*plan.question)) for _ in range(plan.turns)]
        self._answers = [_text(own, own.randint(*plan.answer)) for _ in range(plan.turns)]

    def messages(self, turn: int, answers: Sequence[str] | None = None) -> list[dict[str, str]]:
        """Return the messages of a turn, with the given answers to those before, or with made-up ones."""
        told = self._answers if answers is None else answers
        messages = [{"role": "system", "content": self._system}]
        for before in range(turn):
            messages.append({"role": "user", "content": self._questions[before]})
            messages.append({"role": "assistant", "content": told[before]})
        messages.append({"role": "user", "content": self._questions[turn]})
        return messages


def body(model: str, messages: Sequence[Mapping[str, str]], tokens: int, **members: Any) -> bytes:
    """Write a request that is answered with exactly so many tokens."""
    asked = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps({**asked, **members}).encode()


async def ask(
    session: aiohttp.ClientSession, url: str, data: bytes, further: Mapping[str, str] | None = None
) -> Answer:
    """Send a request, perhaps with further headers, and wait for the whole answer."""
    began = time.perf_counter()
    headers = {"content-type": "application/json", **(further or {})}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with session.post(url + PATH, data=data, headers=headers, timeout=timeout) as response:
            told = await response.read()
            seconds = time.perf_counter() - began
            if response.status != 200:
                return Answer(seconds, problem=f"{response.status} {told[:200]!r}")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(time.perf_counter() - began, problem=repr(error))
    answer = json.loads(told)
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    text = answer["choices"][0]["message"]["content"] or ""
    return Answer(seconds, usage["prompt_tokens"], cached, text)


async def converse(session: aiohttp.ClientSession, url: str, model: str, plan: Plan, seed: str) -> list[Answer]:
    """Hold all conversations, and return the answers in the order in which they came."""
    turns = asyncio.Semaphore(plan.at_once)
    answers: list[Answer] = []

    async def hold(conversation: Conversation) -> None:
        for turn, think in enumerate(conversation.thinks):
            data = body(model, conversation.messages(turn), plan.tokens)
            async with turns:
                answers.append(await ask(session, url, data))
            await asyncio.sleep(think)

    async with asyncio.TaskGroup() as tasks:
        for number in range(plan.sessions):
            tasks.create_task(hold(Conversation(plan, seed, number)))
    return answers


def _text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(_WORDS, k=words))
