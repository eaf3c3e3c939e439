"""Overload behind a real Envoy: caps, waiting, 429 with Retry-After, and who goes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.wire.stack import MODEL, Stack, running_stack

LONG = 120
"""Tokens of an answer that holds its place for a while."""


@asynccontextmanager
async def capped(
    folder: Path, *, queue: str = "{}", more: str = "", envoy: str = "", **options: Any
) -> AsyncIterator[Stack]:
    """Run one engine that may hold one request."""
    pool = f"    models: [{MODEL}]\n    caps: {{requests: 1}}\n    queue: {queue}\n{more}"
    async with running_stack(folder, engines=1, pool=pool, log_flush=0.01, log_buffer=1, **options) as running:
        yield running


def ask(stack: Stack, text: str, tokens: int = LONG, **headers: str) -> asyncio.Task[tuple[int, dict[str, str], bytes]]:
    """Send a chat in the background."""
    body = {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
    return asyncio.create_task(stack.post("/v1/chat/completions", body, **headers))


async def waits(stack: Stack, count: int) -> None:
    """Wait until so many requests wait for their turn."""
    await until(lambda: len(stack.service._core.admission) == count)


@pytest.mark.parametrize("transport", ["queue", "aio"])
async def test_who_finds_all_endpoints_full_waits_and_is_answered(tmp_path: Path, transport: str) -> None:
    """Beyond Envoy's usual patience, and one after the other; Envoy finds no fault with it."""
    async with capped(tmp_path, transport=transport, speed=2.0, message_timeout=0.2) as stack:
        asked = [ask(stack, f"question {number}", 30) for number in range(4)]
        await waits(stack, 3)
        answers = await asyncio.gather(*asked)
        assert [status for status, _, _ in answers] == [200] * 4
        assert await stack.violations() == {}
        stats = await stack.envoy.stats("http.")
        assert sum(n for name, n in stats.items() if name.endswith("override_message_timeout_received")) == 3
        assert sum(n for name, n in stats.items() if name.endswith("failure_mode_allowed")) == 0
        for outcome in await stack.outcomes(4):
            assert outcome.duration > 0.0
        assert len(stack.service._core.ledger) == 0
