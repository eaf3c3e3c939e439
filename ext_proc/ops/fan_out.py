"""Tells several observers what happened; of what comes with each request only those who listen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.core.observer import NoObserver

if TYPE_CHECKING:
    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome
    from ext_proc.core.observer import Observer


class FanOut:
    """Forwards each call to every observer, in the order given."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._on_decision = [each.decided for each in observers if _listens(each, "decided")]
        self._on_end = [each.finished for each in observers if _listens(each, "finished")]

    def decided(self, decision: Decision, seconds: float) -> None:
        """Forward it."""
        for tell in self._on_decision:
            tell(decision, seconds)

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.refused(request, refusal, filters)

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.waited(pool, result, seconds)

    def passed(self, reason: str) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.passed(reason)

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.failed(reason, error)

    def first_token(self, decision: Decision, seconds: float) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.first_token(decision, seconds)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Forward it."""
        for tell in self._on_end:
            tell(decision, outcome)

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.strategy_failed(strategy, error)

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Forward it."""
        for observer in self._observers:
            observer.health_changed(endpoint, state, evidence, reason)


def _listens(observer: Observer, event: str) -> bool:
    """Tell whether an observer does anything about an event."""
    return getattr(type(observer), event, None) is not getattr(NoObserver, event)
