"""Waiting for a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 20.0


async def until(condition: Callable[[], bool | Awaitable[bool]], deadline: float = DEADLINE_S) -> None:
    """Wait until the condition holds; fail when the deadline passes first."""
    end = time.monotonic() + deadline
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
        if met:
            return
        assert time.monotonic() < end, f"still not so after {deadline:g} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.02)
