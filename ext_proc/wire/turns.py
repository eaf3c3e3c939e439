"""Waits for the turn of a request on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ext_proc.core.turn import Turn


async def await_turn(turn: Turn, give_up: Callable[[], None]) -> None:
    """Return when a turn has its action, which `give_up` sees to once the time is over."""
    called = asyncio.Event()
    turn.call = called.set
    timer = asyncio.get_running_loop().call_later(turn.deadline - turn.since, give_up)
    try:
        if turn.action is None:
            await called.wait()
    finally:
        timer.cancel()
