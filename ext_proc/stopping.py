"""What a service that was told to stop still waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

TICK_S = 0.05


async def linger(again: asyncio.Event, drain_s: float, passing: Callable[[], int], passing_s: float) -> None:
    """Wait while the data plane notices, and then until no answer passes through here; returns at once if told again.

    Args:
        again: set when the service is told to stop a second time.
        drain_s: seconds that the data plane is given.
        passing: counts the answers that would be cut.
        passing_s: seconds that they are given after that, at most.
    """
    await _wait(again, drain_s)
    loop = asyncio.get_running_loop()
    until = loop.time() + passing_s
    while passing() and not again.is_set() and loop.time() < until:
        await _wait(again, TICK_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
