"""The garbage collector is called when it costs little."""

from __future__ import annotations

import gc
import weakref

from ext_proc.collecting import INTERVAL_S, Collecting


class Costly:
    """A collection that takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.calls = 0

    def __call__(self) -> int:
        """Take it."""
        self.now += self.seconds
        self.calls += 1
        return 0


def times(seconds: float, until: int) -> list[int]:
    """Return when collections that take so long happen, looked at every second."""
    costly, found = Costly(seconds), []
    now = 0
    collecting = Collecting(costly, lambda: costly.now, lambda: float(now))
    for now in range(until):
        before = costly.calls
        collecting.tick()
        found += [now] * (costly.calls - before)
    return found


def test_it_is_done_every_minute() -> None:
    """Not at once, since the start has just done it."""
    assert times(0.005, 190) == [60, 120, 180]


def test_a_large_process_waits_longer() -> None:
    """So that collections take a thousandth of its time at most."""
    assert times(0.2, 600) == [60, 260, 460]
    assert times(5.0, 1_300) == [60, 660, 1260]


def test_cycles_that_were_alive_once_are_freed() -> None:
    """Even those that two collections have found in use."""

    class Node:
        other: object = None

    node = Node()
    node.other = node
    gone = weakref.ref(node)
    gc.collect(1)
    gc.collect(1)
    del node
    gc.collect(1)
    assert gone() is not None
    now = 0.0
    collecting = Collecting(clock=lambda: now)
    now = INTERVAL_S
    collecting.tick()
    assert gone() is None
