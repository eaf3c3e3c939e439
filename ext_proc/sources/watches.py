"""Watches endpoints, each in a task of its own, for as long as a source runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import aiohttp

NOTICE_S = 0.1
"""Time between two looks at the registry."""


class Watch(Protocol):
    """One endpoint under observation."""

    task: asyncio.Task[None] | None


Watched = TypeVar("Watched", bound=Watch)


async def keep_watching(
    session: aiohttp.ClientSession, look: Callable[[aiohttp.ClientSession], None], watches: dict[int, Watched]
) -> None:
    """Look at the registry again and again until cancelled; then end all watches, and the session.

    Args:
        session: the HTTP client of all watches.
        look: brings the watches in line with the registry.
        watches: what is watched, by generation; empty afterwards.
    """
    async with session:
        try:
            while True:
                look(session)
                await asyncio.sleep(NOTICE_S)
        finally:
            tasks = [watch.task for watch in watches.values() if watch.task is not None]
            watches.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
