"""Says once, in the log, how Envoy is set that kvpicker cannot do its part."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ext_proc.core.misfits import MENDS, Counts, Misfit, MisfitWatch, degraded_reason
from ext_proc.core.model import Ending, Unhashed
from ext_proc.log_watch import LogWatch
from ext_proc.ops import families
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics

_SETTLED: Final = frozenset({"settled", "renewed", "repeated", "foreign", "unknown"})
"""What becomes of entries of the access log that name a decision."""

_HEADLESS: Final = ("unexpected_request_body",)


class Fitting:
    """Looks at the counts of what Envoy sends.

    Args:
        metrics: counts it.
        log_watch: knows whether the access log is silent.
        say: writes a line of the log.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        log_watch: LogWatch,
        say: Callable[..., Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._log_watch = log_watch
        self._say = say
        self._clock = clock
        self._watch = MisfitWatch(self._counts(), clock())

    @property
    def degraded(self) -> dict[str, bool]:
        """Reasons for deciding with less than kvpicker should know, and whether each holds."""
        return {degraded_reason(misfit): misfit in self._watch.present for misfit in Misfit}

    def look(self) -> None:
        """Judge what came, and say what is new."""
        now = self._clock()
        if not self._watch.is_due(now):
            return
        for misfit in self._watch.look(self._counts(), now, log_silent=self._log_watch.is_silent):
            self._say(Event.ENVOY_MISFIT, misfit=misfit, **MENDS[misfit]._asdict())

    def _counts(self) -> Counts:
        self._metrics.catch_up()
        tallies = self._metrics.tallies
        entries = tallies[families.ACCESS_LOG_ENTRIES].counts
        unread, passed = (Unhashed.BODY_NOT_SENT,), ("body_not_sent",)
        endings = tallies[families.REQUESTS].counts.items()
        return Counts(
            decided=sum(tallies[families.DECISIONS].counts.values()),
            unread=tallies[families.UNHASHED].counts.get(unread, 0) + tallies[families.PASSED].counts.get(passed, 0),
            headless=tallies[families.EXCHANGE_FAILURES].counts.get(_HEADLESS, 0),
            joined=sum(count for (result,), count in entries.items() if result in _SETTLED),
            unjoined=entries.get(("undecided",), 0),
            finished=sum(count for labels, count in endings if labels[-1] != Ending.LOST),
            attempts=sum(tallies[families.ATTEMPTS].counts.values()),
            elsewhere=sum(tallies[families.FALLBACKS].counts.values()),
        )
