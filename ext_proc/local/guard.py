"""Cleans up after a process that was killed: run as a script that reads its orders from standard input.

Each line is `+PID` or `-PID`: a process group to end later, or one that has ended. The end of the input means that
whoever gave the orders is gone. Uses the standard library alone, so that it starts at once and stays small.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

GRACE = 1.0
POLL_INTERVAL = 0.05
REMOVAL_ATTEMPTS = 20


def follow(orders: Iterable[str]) -> set[int]:
    """Read orders until they end; returns the process groups that are left to end."""
    groups: set[int] = set()
    for order in orders:
        if order.startswith("+"):
            groups.add(int(order[1:]))
        else:
            groups.discard(int(order[1:]))
    return groups


def end(groups: set[int], grace: float = GRACE) -> None:
    """Ask process groups to end, and make them after `grace` seconds."""
    left = _signal(groups, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
        left = _signal(left, 0)
    _signal(left, signal.SIGKILL)


def remove(folder: Path) -> None:
    """Remove a folder, even while a process that is about to end still writes to it."""
    for _ in range(REMOVAL_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_INTERVAL)


def _signal(groups: set[int], number: int) -> set[int]:
    """Send a signal (0 only asks); returns the groups that exist."""
    found = set()
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue
        found.add(group)
    return found


if __name__ == "__main__":
    end(follow(sys.stdin))
    remove(Path(sys.argv[1]))
