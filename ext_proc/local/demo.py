"""Sends the demonstration through Envoy and asks kvpicker why each request went where it went."""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from ext_proc.local.client import Reply, chat
from ext_proc.local.scenario import Scenario

PARALLEL: Final = 4
SPACING: Final = 0.05
"""Seconds between two requests of a part whose requests overlap."""

REQUEST_TIMEOUT: Final = 120.0
EXPLANATION_TIMEOUT: Final = 5.0
POLL_INTERVAL: Final = 0.05


class Part(enum.Enum):
    """The parts of the demonstration, with what they show."""

    CONVERSATION = "one conversation, turn by turn"
    SHARED = "one system prompt, different questions"
    UNRELATED = "prompts that share nothing"


class Sent(msgspec.Struct, kw_only=True):
    """One request of the demonstration.

    Attributes:
        part: the part it belongs to.
        number: its place in that part, from 1.
        body: what was sent.
        request_id: its x-request-id.
        reply: what came back.
        decision: kvpicker's explanation, as its admin server gives it; None if there is none.
    """

    part: Part
    number: int
    body: dict[str, Any]
    request_id: str
    reply: Reply
    decision: dict[str, Any] | None = None


class Demonstration:
    """Sends requests and keeps them in the order in which they were sent.

    Args:
        session: the HTTP client.
        url: where Envoy listens.
        scenario: what to send.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, scenario: Scenario) -> None:
        self.sent: list[Sent] = []
        self._session = session
        self._url = url
        self._scenario = scenario
        self._run = secrets.token_hex(4)
        self._turn = asyncio.Semaphore(PARALLEL)

    async def run(self) -> list[Sent]:
        """Send everything: the conversation one by one, the rest side by side, a few at a time."""
        await self._converse()
        await self._send_all(Part.SHARED, self._scenario.questions())
        await self._send_all(Part.UNRELATED, self._scenario.singles())
        return self.sent

    async def _converse(self) -> None:
        messages: list[dict[str, Any]] = []
        for number, text in enumerate(self._scenario.turns(), 1):
            messages = [*messages, {"role": "user", "content": text}]
            sent = await self._send(Part.CONVERSATION, number, self._scenario.body(messages))
            messages = [*messages, {"role": "assistant", "content": sent.reply.text}]

    async def _send_all(self, part: Part, bodies: Sequence[dict[str, Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, body in enumerate(bodies, 1):
                group.create_task(self._send(part, number, body))
                await asyncio.sleep(SPACING)

    async def _send(self, part: Part, number: int, body: dict[str, Any]) -> Sent:
        # Not of the form of a UUID, in which Envoy would change a digit.
        request_id = f"demonstration-{self._run}-{part.name.lower()}-{number}"
        async with self._turn:
            sent = Sent(part=part, number=number, body=body, request_id=request_id, reply=Reply())
            self.sent.append(sent)
            sent.reply = await chat(self._session, self._url, body, request_id)
        return sent


async def explain(session: aiohttp.ClientSession, admin_url: str, sent: Sequence[Sent]) -> None:
    """Add kvpicker's explanation to each request that was answered; outcomes arrive there a moment later."""
    deadline = time.monotonic() + EXPLANATION_TIMEOUT
    for one in sent:
        while not one.reply.error:
            one.decision = await _decision(session, admin_url, one.request_id)
            if one.decision is not None or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_INTERVAL)


async def _decision(session: aiohttp.ClientSession, admin_url: str, request_id: str) -> dict[str, Any] | None:
    async with session.get(f"{admin_url}/debug/decisions", params={"request_id": request_id}) as response:
        if response.status != HTTPStatus.OK:
            return None
        decisions: list[dict[str, Any]] = (await response.json())["decisions"]
    return decisions[0] if decisions else None


def cached_ratio(replies: Sequence[Reply]) -> float | None:
    """Share of prompt tokens that engines found in their caches; None unless all that answered reported it."""
    cached = prompt = 0
    for reply in replies:
        if reply.error:
            continue
        if reply.cached_tokens is None or reply.prompt_tokens is None:
            return None
        cached += reply.cached_tokens
        prompt += reply.prompt_tokens
    return cached / prompt if prompt else None
