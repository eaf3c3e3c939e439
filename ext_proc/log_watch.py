"""Notices that Envoy's access log is cut: requests run, and for too long nothing is heard of any."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ext_proc.core.ledger import Ledger

SILENCE: Final = 2 / 3
"""Of the time after which leases end by silence, three of Envoy's reports of running requests by default: with leases
open, this much of it means that the log is cut."""


class LogWatch:
    """Listens for entries of the access log, of whomever they speak.

    Args:
        ledger: which requests run.
        renewal_timeout: seconds after which leases end by silence.
        count: counts entries by what became of them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        renewal_timeout: float,
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._silence = SILENCE * renewal_timeout
        self._count = count
        self._clock = clock
        self._heard_at = clock()

    def entry(self, result: str) -> None:
        """Note an entry, and what became of it."""
        self._heard_at = self._clock()
        self._count(result)

    @property
    def is_silent(self) -> bool:
        """Whether ends of requests are not heard of."""
        waiting = self._ledger.waiting_since
        return waiting is not None and self._clock() - max(self._heard_at, waiting) > self._silence
