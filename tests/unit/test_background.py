"""Works beside the requests, which no fault ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from ext_proc.background import follow_up, repeat, run_beside
from tests.waiting import until


async def test_a_work_that_fails_is_told_of_and_begun_again() -> None:
    """Otherwise metrics, say, would never be read again, and nobody would know."""
    begun: list[int] = []
    told: list[str] = []
    gone = asyncio.Event()

    async def work() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise ValueError
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with AsyncExitStack() as stack:
        run_beside(stack, lambda reason, _error: told.append(reason), work, again_s=0.01)
        await until(lambda: len(begun) == 3)
        assert told == ["background", "background"]
    assert gone.is_set()


async def test_a_chore_that_fails_keeps_no_other_from_its_turn() -> None:
    """Leases are given up though the tick before fails, and both go on."""
    told: list[str] = []
    done: list[int] = []

    def broken() -> None:
        raise ValueError

    async with AsyncExitStack() as stack:
        failed = lambda reason, _error: told.append(reason)  # noqa: E731  shared by both
        run_beside(stack, failed, lambda: repeat(0.01, failed, (broken, lambda: done.append(1))))
        await until(lambda: len(done) >= 2)
    assert told[:2] == ["housekeeping", "housekeeping"]


async def test_what_follows_an_event_is_done_once_for_each_time() -> None:
    """Nothing is done while nothing happens, and a fault does not end it."""
    told: list[str] = []
    done: list[int] = []
    event = asyncio.Event()

    def work() -> None:
        done.append(1)
        raise ValueError

    async with AsyncExitStack() as stack:
        failed = lambda reason, _error: told.append(reason)  # noqa: E731  shared by both
        run_beside(stack, failed, lambda: follow_up(event, 0.0, failed, "log", work))
        event.set()
        await until(lambda: len(done) == 1 and not event.is_set())
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(done) == 1
        event.set()
        await until(lambda: len(done) == 2)
    assert told == ["log", "log"]


async def test_a_work_that_ends_is_over() -> None:
    """Waiting for the first endpoint, say, is done once."""
    begun: list[int] = []
    later = asyncio.Event()

    async def work() -> None:
        begun.append(1)

    async def look() -> None:
        later.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        run_beside(stack, lambda _reason, _error: None, work, again_s=0.0)
        await until(lambda: bool(begun))
        for _ in range(10):
            await asyncio.sleep(0)
        run_beside(stack, lambda _reason, _error: None, look)
        await later.wait()
    assert begun == [1]
