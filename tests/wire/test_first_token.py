"""The time to the first token, through a real Envoy that shows answers until then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.wire.pieces import CHAT, Engine, running_engine, token
from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy

PING = b": PROCESSING\n\n"


@contextlib.asynccontextmanager
async def scripted(folder: Path, **options: Any) -> AsyncIterator[tuple[Stack, Engine]]:
    """Run Envoy, showing answers, and kvpicker in front of one scripted engine."""
    async with (
        running_engine() as engine,
        running_stack(folder, engines=0, addresses=[engine.address], first_token=True, **options) as stack,
    ):
        yield stack, engine


async def ask(stack: Stack, *pieces: tuple[float, str], **wanted: Any) -> tuple[int, bytes]:
    """Have the engine answer with some pieces; returns status and body."""
    status, _, body = await stack.post("/v1/chat/completions", {**CHAT, "pieces": pieces, **wanted})
    return status, body


async def first_token_ms(stack: Stack, count: int = 1) -> float | None:
    """Return what the log says of the last of `count` requests."""
    found: float | None = (await stack.finished(count))[-1]["first_token_ms"]
    return found


TRANSPORTS = pytest.mark.parametrize("transport", ["queue", "aio"])


@TRANSPORTS
async def test_the_time_is_that_of_the_first_token(tmp_path: Path, transport: str) -> None:
    """Neither the headers nor pings count; and waiting for an engine is no message timeout."""
    async with scripted(tmp_path, transport=transport, message_timeout=0.2) as (stack, _):
        assert (await ask(stack, (0.2, PING.decode()), (0.3, token("Elbe")), (0.5, token("Po"))))[0] == 200
        (line,) = await stack.finished(1)
        assert line["first_token_ms"] >= 500
        assert line["first_token_ms"] + 100 <= line["duration_ms"]
        assert await stack.violations() == {}


@TRANSPORTS
async def test_streams_of_odd_pieces_pass_to_the_byte(tmp_path: Path, transport: str) -> None:
    """200 streams, 32 at a time, cut anywhere and sent in bursts or slowly, arrive as they were sent."""
    generator = random.Random(11)
    gate = asyncio.Semaphore(32)

    async def one(stack: Stack) -> None:
        async with gate:
            events = (token(f"{number} 河 ") for number in range(generator.randint(1, 60)))
            text = PING.decode() * generator.randint(0, 1) + "".join(events)
            cuts = sorted(generator.sample(range(1, len(text)), min(generator.randint(0, 40), len(text) - 1)))
            pause = generator.choice([0, 0, 0.0005, 0.003])
            ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
            status, body = await ask(stack, *[(pause, text[start:end]) for start, end in ends])
        assert (status, body.decode()) == (200, text)

    async with scripted(tmp_path, transport=transport, failure_mode="closed") as (stack, _):
        await asyncio.gather(*(one(stack) for _ in range(200)))
        assert len(await stack.finished(200)) == 200
        assert await stack.violations() == {}
        stats = await stack.envoy.stats("http.entry.ext_proc.")
        assert stats["http.entry.ext_proc.streams_failed"] == 0


@pytest.mark.parametrize(
    ("wanted", "pieces"),
    [
        ({"stream": False, "kind": "application/json"}, [(0.0, '{"choices":[]}')]),
        ({"status": 400, "kind": "application/json"}, [(0.0, '{"error":{}}')]),
        ({"status": 204}, []),
        ({}, []),
    ],
    ids=["whole answer", "error", "204", "empty"],
)
async def test_answers_without_a_first_token_have_none(tmp_path: Path, wanted: Any, pieces: Any) -> None:
    """What is no stream of tokens passes, and has no time to the first token."""
    async with scripted(tmp_path, failure_mode="closed") as (stack, _):
        status, body = await ask(stack, *pieces, **wanted)
        assert (status, body.decode()) == (wanted.get("status", 200), "".join(piece for _, piece in pieces))
        assert await first_token_ms(stack) is None
        assert await stack.violations() == {}
        assert len(stack.service._core.ledger) == 0


async def test_the_token_after_a_retry_is_of_the_endpoint_that_served(tmp_path: Path) -> None:
    """If the chosen engine cannot be reached, the time belongs to the next one."""
    options = {"strategy": "round-robin", "pool": f"    models: [{MODEL}]"}
    async with scripted(tmp_path, **options) as (stack, engine):
        stack.list_engines(["127.0.0.1:1", engine.address])
        await until(lambda: len(stack.service._core.registry.snapshot.endpoints) == 2)
        for _ in range(2):
            await ask(stack, (0.0, token("Elbe")), (0.3, token("Po")))
        lines = await stack.finished(2)
        assert {line["attempts"] for line in lines} == {1, 2}
        assert {line["endpoint"] for line in lines} == {engine.address}
        assert all(line["first_token_ms"] is not None for line in lines)


@TRANSPORTS
async def test_a_client_that_leaves_while_it_waits_settles_once(tmp_path: Path, transport: str) -> None:
    """The pick is not taken back when the client leaves before its first token; the access log ends the lease."""
    async with scripted(tmp_path, transport=transport) as (stack, engine):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await ask(stack, (30.0, token("never")))
        (line,) = await stack.finished(1)
        assert (line["ending"], line["endpoint"], line["first_token_ms"]) == ("client_gone", engine.address, None)
        assert await stack.violations() == {}


@TRANSPORTS
async def test_an_orderly_stop_lets_waiting_requests_go_on(tmp_path: Path, transport: str) -> None:
    """Even failing closed, requests that wait for their first token outlive a kvpicker that stops in order."""
    async with scripted(tmp_path, transport=transport, failure_mode="closed") as (stack, engine):
        answers = [asyncio.ensure_future(ask(stack, (2.0, token("late")), late=late)) for late in (True, False) * 8]
        await until(lambda: engine.begun == 16)
        await stack.service.__aexit__()
        assert not any(answer.done() for answer in answers)
        assert await asyncio.gather(*answers) == [(200, token("late").encode())] * 16
