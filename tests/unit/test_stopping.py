"""What a stop waits for."""

from __future__ import annotations

import asyncio

from ext_proc.stopping import linger
from tests.waiting import until


async def test_a_stop_waits_for_answers_and_no_longer() -> None:
    """It ends when none passes any more."""
    passing = [1, 1]
    lingering = asyncio.ensure_future(linger(asyncio.Event(), 0, lambda: len(passing), 60))
    await asyncio.sleep(0)
    assert not lingering.done()
    passing.clear()
    await lingering


async def test_a_second_word_ends_the_wait() -> None:
    """Whatever is waited for."""
    for drain, passing in ((60.0, 0), (0.0, 1)):
        again = asyncio.Event()
        lingering = asyncio.ensure_future(linger(again, drain, lambda: passing, 60))  # noqa: B023  it is over by then
        await asyncio.sleep(0)
        assert not lingering.done()
        again.set()
        await until(lingering.done)


async def test_a_stop_waits_no_longer_than_it_may() -> None:
    """Answers that go on are cut."""
    await linger(asyncio.Event(), 0, lambda: 1, 0.01)
