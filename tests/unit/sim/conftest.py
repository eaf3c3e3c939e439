"""Engines and HTTP clients for the tests of the simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from ext_proc.sim.engine import EngineOptions, SimEngine

StartEngine = Callable[..., Awaitable[SimEngine]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts engines that are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> SimEngine:
            return await stack.enter_async_context(SimEngine(EngineOptions(**options)))

        yield start


@pytest.fixture
async def engine(start_engine: StartEngine) -> SimEngine:
    """An engine without delays."""
    return await start_engine(name="one")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that gives up before the test does."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    """Makes chat requests."""

    def make(content: str = "hello", **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}], **fields}

    return make
