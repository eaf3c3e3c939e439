"""Many waits on one timer."""

from __future__ import annotations

import asyncio

from ext_proc.wire.alarms import Alarms
from tests.waiting import until


class Bell:
    """Notes who was called about what, and when; whom it is told to let off it lets off as it rings first."""

    def __init__(self) -> None:
        self.rung: list[tuple[str, int]] = []
        self.times: dict[str, float] = {}
        self.lets_off: str | None = None
        self.alarms: Alarms[str, int] = Alarms(self._ring)

    def _ring(self, waiter: str, matter: int) -> None:
        self.rung.append((waiter, matter))
        self.times[waiter] = asyncio.get_running_loop().time()
        if self.lets_off is not None:
            self.alarms.discard(self.lets_off)


async def test_each_is_called_once_and_in_time() -> None:
    """In the order of their times, about what they waited for; never before."""
    bell, began = Bell(), asyncio.get_running_loop().time()
    for seconds, name in ((0.09, "c"), (0.03, "a"), (0.06, "b")):
        bell.alarms.set(name, seconds, round(seconds * 100))
    await until(lambda: len(bell.rung) == 3)
    assert bell.rung == [("a", 3), ("b", 6), ("c", 9)]
    assert all(bell.times[name] - began >= 0.029 * (1 + place) for place, name in enumerate("abc"))
    assert len(bell.alarms) == 0


async def test_who_is_told_in_time_is_not_called() -> None:
    """Nor are those that the bell of another lets off, and to tell somebody twice does no harm."""
    bell = Bell()
    bell.lets_off = "third"
    for name in ("first", "second", "third", "last"):
        bell.alarms.set(name, 0.2 if name == "last" else 0.02, 1)
    for _ in range(2):
        bell.alarms.discard("second")
    await until(lambda: len(bell.rung) == 2)
    assert bell.rung == [("first", 1), ("last", 1)]


async def test_who_asks_again_waits_anew() -> None:
    """The time and the matter of before are forgotten, and the timer serves who comes when nobody waited."""
    bell = Bell()
    bell.alarms.set("a", 0.01, 1)
    bell.alarms.set("a", 0.05, 2)
    await until(lambda: bool(bell.rung))
    assert bell.rung == [("a", 2)]
    bell.alarms.set("b", 0.01, 3)
    await until(lambda: len(bell.rung) == 2)
    assert bell.rung[-1] == ("b", 3)


async def test_many_that_wait_share_few_looks() -> None:
    """A thousand different times within 50 ms are all kept, without a look for each."""
    bell = Bell()
    for number in range(1000):
        bell.alarms.set(f"{number}", 0.01 + number * 5e-5, number)
    await until(lambda: len(bell.rung) == 1000)
    assert sorted(matter for _, matter in bell.rung) == list(range(1000))
