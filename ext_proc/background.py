"""What a service does beside its requests for as long as it runs; no fault ends any of it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final, TypeAlias

Failed: TypeAlias = Callable[[str, BaseException], None]
"""Hears of a fault by a reason, a metric label."""

AGAIN_S: Final = 1.0
"""How long after a fault a work is begun again."""


def run_beside(
    stack: AsyncExitStack, failed: Failed, *works: Callable[[], Awaitable[None]], again_s: float = AGAIN_S
) -> None:
    """Run works until they end or the stack is closed; one that ends by a fault is told of, and begun again later."""
    for work in works:
        task = asyncio.create_task(_keep_running(work, failed, again_s))

        async def end(task: asyncio.Task[None] = task) -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)


async def repeat(interval: float, failed: Failed, works: Iterable[Callable[[], object]]) -> None:
    """Do some things in turn, every so many seconds, for ever; one that fails keeps none of the others from it."""
    done = tuple(works)
    while True:
        await asyncio.sleep(interval)
        for work in done:
            try:
                work()
            except Exception as error:  # noqa: BLE001  a round that fails must not be the last
                failed("housekeeping", error)


async def follow_up(
    event: asyncio.Event, delay: float, failed: Failed, reason: str, work: Callable[[], object]
) -> None:
    """Do something so many seconds after each time that an event is set, for ever, even if it fails.

    Args:
        event: cleared before the work, which may set it again.
        delay: seconds.
        failed: hears of faults.
        reason: of such a fault.
        work: what is done.
    """
    while True:
        await event.wait()
        await asyncio.sleep(delay)
        event.clear()
        try:
            work()
        except Exception as error:  # noqa: BLE001  one that fails must not be the last
            failed(reason, error)


async def _keep_running(work: Callable[[], Awaitable[None]], failed: Failed, again_s: float) -> None:
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  it would be missed, and nobody would know
            failed("background", error)
        else:
            return
        await asyncio.sleep(again_s)
