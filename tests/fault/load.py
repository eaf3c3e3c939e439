"""Steady traffic through Envoy with streams that stay open, every request of it in the ledger."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.fault.ledger import ClientLedger, Sent, Verdict

MODEL = "sim-model"
OK = 200
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
PATIENCE = aiohttp.ClientTimeout(total=180.0, sock_read=15.0)
"""No answer needs half as long, and none is silent for so long: Envoy ends it before."""

TOKENS = 4
STREAM_TOKENS = (40, 160)
FAMILIES = 8


class Wrong(Exception):
    """An answer that came whole and is not the one that was asked for."""


class Traffic:
    """What the clients do.

    Args:
        url: where Envoy listens.
        session: through which they send; without a limit on connections.
        ledger: hears of every request.
        rate: short requests per second.
        streams: long streams that are open at any time.
        tokens: how long they are, from and below.
        name: part of every request's id, so that ids of two runs differ.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        ledger: ClientLedger,
        *,
        rate: float = 40.0,
        streams: int = 16,
        tokens: tuple[int, int] = STREAM_TOKENS,
        name: str = "fault",
        seed: int = 0,
    ) -> None:
        self.url = url
        self._session = session
        self._ledger = ledger
        self._rate = rate
        self._streams = streams
        self._tokens = tokens
        self._name = name
        self._numbers = itertools.count()
        self._generator = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send until the context is left, then let what runs end; no request is given up."""
        steady = [
            asyncio.create_task(self._steady()),
            *(asyncio.create_task(self._hold()) for _ in range(self._streams)),
        ]
        try:
            yield
        finally:
            self._over = True
            await asyncio.gather(*steady)
            await asyncio.gather(*self._tasks)

    async def stream(self, tokens: int, *, leave_after: int | None = None) -> None:
        """Ask for one stream of so many tokens; a client that leaves does so after that many events."""
        await self._send(CHAT, self._chat(tokens, stream=True), leave_after=leave_after)

    async def _steady(self) -> None:
        """Send at even intervals, however long answers take."""
        begun = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(begun + number / self._rate - time.monotonic(), 0))
            if self._over:
                return
            task = asyncio.create_task(self._short())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _short(self) -> None:
        drawn = self._generator.random()
        if drawn < 0.1:
            text = f"text {self._generator.random()} " * self._generator.randrange(1, 40)
            await self._send(EMBEDDINGS, {"model": MODEL, "input": text})
        else:
            await self._send(CHAT, self._chat(TOKENS, stream=drawn < 0.3))

    async def _hold(self) -> None:
        while not self._over:
            begun = time.monotonic()
            await self.stream(self._generator.randrange(*self._tokens))
            # What fails at once must not be asked for again and again.
            await asyncio.sleep(max(begun + 0.2 - time.monotonic(), 0))

    def _chat(self, tokens: int, *, stream: bool) -> dict[str, Any]:
        family = self._generator.randrange(FAMILIES)
        content = f"family {family} " * 60 + f"question {self._generator.random()} " * self._generator.randrange(1, 60)
        messages = [{"role": "user", "content": content}]
        limits = {"max_tokens": tokens, "ignore_eos": True}
        return {"model": MODEL, "messages": messages, "stream": stream, **limits}

    async def _send(self, path: str, body: dict[str, Any], *, leave_after: int | None = None) -> None:
        data = json.dumps(body).encode()
        sent = self._ledger.add(
            Sent(
                id=f"{self._name}-{next(self._numbers):08d}",
                path=path,
                digest=hashlib.sha256(data).hexdigest(),
                repeatable=path == EMBEDDINGS,
                sent_at=time.monotonic(),
            )
        )
        verdict, why = await self._judge(sent, body, data, leave_after)
        sent.end(verdict, time.monotonic(), why)

    async def _judge(
        self, sent: Sent, body: dict[str, Any], data: bytes, leave_after: int | None
    ) -> tuple[Verdict, str]:
        headers = {"content-type": "application/json", "x-request-id": sent.id}
        begun = False
        try:
            url = self.url + sent.path
            async with self._session.post(url, data=data, headers=headers, timeout=PATIENCE) as answer:
                if answer.status != OK:
                    return Verdict.FAILED, f"{answer.status} {_detail(await answer.read())}"
                sent.engine = answer.headers.get("x-sim-engine", "")
                begun = bool(body.get("stream"))
                if leave_after is not None and await _read_some(answer, leave_after):
                    return Verdict.LEFT, ""
                check = _check_stream if begun else _check_whole
                return check(sent, body, await answer.read())
        except TimeoutError as error:
            spent = time.monotonic() - sent.sent_at
            at = f"after its beginning, from {sent.engine}" if begun else "before any answer"
            return Verdict.HUNG, f"{type(error).__name__} {at}, {spent:.0f} s"
        except aiohttp.ClientError as error:
            return (Verdict.CUT if begun else Verdict.FAILED), type(error).__name__
        except Wrong as error:
            return Verdict.ALTERED, str(error)


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])[:60]
    except (ValueError, KeyError, TypeError):
        return body[:60].decode("utf-8", "replace")


async def _read_some(answer: aiohttp.ClientResponse, events: int) -> bool:
    """Read so many events; False if the stream ended before."""
    async for line in answer.content:
        events -= line.startswith(b"data:")
        if not events:
            answer.close()
            return True
    return False


def _check_whole(sent: Sent, body: dict[str, Any], data: bytes) -> tuple[Verdict, str]:
    try:
        answer = json.loads(data)
    except ValueError:
        return Verdict.FAILED, "answer is no JSON"
    _check_id(sent, answer)
    if sent.path == CHAT and answer["usage"]["completion_tokens"] != body["max_tokens"]:
        raise Wrong("another number of tokens")
    return Verdict.RIGHT, ""


def _check_stream(sent: Sent, body: dict[str, Any], data: bytes) -> tuple[Verdict, str]:
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]" or events.count(b"[DONE]") != 1:
        return Verdict.CUT, "stream without an end"
    words = 0
    for event in map(json.loads, events[:-1]):
        if "error" in event:
            return Verdict.FAILED, "error in the stream"
        _check_id(sent, event)
        words += sum(bool(choice["delta"].get("content")) for choice in event["choices"])
    if words != body["max_tokens"]:
        raise Wrong("another number of tokens")
    return Verdict.RIGHT, ""


def _check_id(sent: Sent, answer: dict[str, Any]) -> None:
    """The engines answer with the id of the request."""
    if not str(answer.get("id")).endswith(sent.id):
        raise Wrong("another request's answer")
