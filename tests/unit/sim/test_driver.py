"""The driver in real time, with steps of milliseconds."""

from __future__ import annotations

import asyncio
import math

import pytest

from ext_proc.sim.driver import Driver, Inbox, Progress
from ext_proc.sim.scheduler import PRESETS, Limits, Scheduler, SimSequence


class Notes:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.reasons: list[str] = []

    def tokens(self, sequence: SimSequence, count: int, now: float, previous: float | None) -> None:
        """Remember the count."""
        del sequence
        assert previous is None or previous <= now
        self.counts.append(count)

    def ended(self, sequence: SimSequence, reason: str, now: float) -> None:
        """Remember the reason."""
        del sequence, now
        self.reasons.append(reason)


def make(speed: float = 20.0, **limits: int) -> tuple[Driver, Notes]:
    """A driver whose steps take about 0.3 ms."""
    notes = Notes()
    return Driver(Scheduler(PRESETS["h100-8b"], Limits(kv_tokens=16_000, **limits)), speed, notes), notes


async def collect(inbox: Inbox) -> list[Progress]:
    """Everything until the first sequence has ended."""
    items: list[Progress] = []
    while not any(item.finished for item in items):
        items += await inbox.take()
    return items


async def test_tokens_arrive_one_by_one() -> None:
    """A stream gets each token when its step is over."""
    driver, notes = make()
    inbox = Inbox(quiet=False)
    assert driver.start(SimSequence(64, 3), inbox, 5, "stop")
    assert await collect(inbox) == [Progress(5, 1, finished=False)] * 2 + [Progress(5, 1, finished=True)]
    assert (notes.counts, notes.reasons) == ([1, 1, 1], ["stop"])


async def test_a_quiet_inbox_hears_of_the_end_only() -> None:
    """An answer without a stream is not woken for each token."""
    driver, _ = make()
    inbox = Inbox(quiet=True)
    driver.start(SimSequence(64, 3), inbox, 0, "stop")
    assert await collect(inbox) == [Progress(0, 1, finished=True)]


async def test_time_is_divided_by_the_speed() -> None:
    """The same work takes about the modelled time divided by the speed, and never less."""
    driver, _ = make(speed=50)
    inbox, start = Inbox(quiet=True), asyncio.get_running_loop().time()
    driver.start(SimSequence(1000, 200), inbox, 0, "stop")
    await collect(inbox)
    modelled = 200 * PRESETS["h100-8b"].a
    assert modelled / 50 <= asyncio.get_running_loop().time() - start < modelled


async def test_an_infinite_speed_never_waits() -> None:
    """Everything is there before anybody waits for it."""
    driver, notes = make(speed=math.inf)
    inbox = Inbox(quiet=False)
    driver.start(SimSequence(64, 3), inbox, 0, "length")
    async with asyncio.timeout(0):
        assert await inbox.take() == [Progress(0, 3, finished=True)]
    assert (notes.counts, notes.reasons) == ([3], ["length"])


async def test_an_abort_frees_memory_and_is_counted() -> None:
    """Whoever leaves gives back what he held."""
    driver, notes = make(speed=0.01)
    one = SimSequence(64, 3)
    driver.start(one, Inbox(quiet=False), 0, "stop")
    await asyncio.sleep(0)
    driver.abort(one)
    driver.abort(one)
    assert (driver.scheduler.cache.used, notes.reasons) == (0, ["abort"])
    driver.stop()


async def test_a_full_queue_is_refused() -> None:
    """What the scheduler does not take gets no inbox."""
    driver, _ = make(speed=0.01, max_num_seqs=1, max_waiting=0)
    started = [driver.start(SimSequence(64, 3), Inbox(quiet=False), 0, "stop") for _ in range(2)]
    assert started == [True, False]
    driver.stop()


@pytest.mark.parametrize("count", [1, 300], ids=["one", "many"])
async def test_many_sequences_share_one_timer(count: int) -> None:
    """All sequences finish with all their tokens."""
    driver, notes = make(speed=200, max_num_seqs=128)
    inbox = Inbox(quiet=False)
    for place in range(count):
        driver.start(SimSequence(20, 8), inbox, place, "stop")
    tokens = finished = 0
    while finished < count:
        for item in await inbox.take():
            tokens, finished = tokens + item.tokens, finished + item.finished
    assert (tokens, sum(notes.counts), len(notes.reasons)) == (8 * count, 8 * count, count)
