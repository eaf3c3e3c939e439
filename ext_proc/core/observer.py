"""What happened, as calls on a protocol: the seam between the core and logs, metrics and the decision ring."""

from __future__ import annotations

from typing import Protocol

from ext_proc.core.errors import Refusal
from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome


class Observer(Protocol):
    """Called synchronously on the request path; implementations are quick and never raise."""

    def decided(self, decision: Decision, seconds: float) -> None:
        """A request was given an endpoint; `seconds` is what deciding took."""

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """A request was answered by kvpicker itself."""

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """A request waited so long for a place in a pool; `result` says how that ended."""

    def passed(self, reason: str) -> None:
        """A request was left to Envoy's fallback policy."""

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """An exchange ended by a fault of kvpicker or of the data plane."""

    def first_token(self, decision: Decision, seconds: float) -> None:
        """A streamed answer has begun, `seconds` after the decision."""

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """The outcome of a decision is known."""

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """A strategy raised or returned nonsense and was replaced for one request."""

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """An endpoint changed its state of health; `reason`, a metric label, says why it was ejected if it was."""


class NoObserver:
    """Observes nothing."""

    def decided(self, decision: Decision, seconds: float) -> None:
        """Ignore it."""

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Ignore it."""

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """Ignore it."""

    def passed(self, reason: str) -> None:
        """Ignore it."""

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Ignore it."""

    def first_token(self, decision: Decision, seconds: float) -> None:
        """Ignore it."""

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Ignore it."""

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Ignore it."""

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Ignore it."""
