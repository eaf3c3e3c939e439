"""Carries what comes of reading metrics to where it belongs: state per endpoint, counts and the log."""

from __future__ import annotations

from collections.abc import Callable

from ext_proc.core.feedback import Feedback
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change
from ext_proc.core.rates import Scrape
from ext_proc.core.signals import EngineSignals, Interval, Times
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics


class ScrapeNews:
    """A listener of the scraper.

    Args:
        metrics: counts the attempts.
        feedback: learns from what engines did.
        apply: puts a change of endpoints into effect.
        say: writes a log event with its fields.
        alive: hears of each change of what is wrong with an endpoint's metrics; an empty text if nothing is.
        slept: hears whether an engine sleeps.
    """

    def __init__(
        self,
        metrics: Metrics,
        feedback: Feedback,
        apply: Callable[[Change], None],
        say: Callable[..., None],
        alive: Callable[[Endpoint, str, Exception | None], None],
        slept: Callable[[Endpoint, EngineSignals], None],
    ) -> None:
        self._slept = slept
        self._metrics = metrics
        self._feedback = feedback
        self._apply = apply
        self._say = say
        self._alive = alive

    def scraped(self, result: str, engine: str, missing: tuple[str, ...]) -> None:
        """Count the attempt."""
        self._metrics.scraped(result, engine, missing)

    def state_changed(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Log the change, and let health weigh it."""
        self._alive(endpoint, problem, error)
        if not problem:
            self._say(Event.SOURCE_RECOVERED, source="metrics", endpoint=endpoint.address)
            return
        kind = {} if error is None else {"error": type(error).__name__}
        self._say(Event.SOURCE_FAILED, source="metrics", endpoint=endpoint.address, reason=problem, **kind)

    def sleep_told(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """Let it be left alone while it sleeps."""
        self._slept(endpoint, signals)

    def size_learnt(self, change: Change) -> None:
        """Let the index and Envoy's list follow."""
        self._apply(change)

    def interval_ended(self, endpoint: Endpoint, interval: Interval, signals: EngineSignals) -> None:
        """Let the feedback learn speed and queue; a process that has just begun holds no prefix, and says no more."""
        if interval.restarted:
            self._feedback.restarted(endpoint)
            return
        ttft = interval.ttft or Times(0.0, 0.0)
        queue = _whole(signals.waiting), _whole(signals.running)
        scrape = Scrape(ttft.sum, int(ttft.count), *queue, seconds=interval.seconds)
        self._feedback.scraped(endpoint, scrape, signals.at)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
