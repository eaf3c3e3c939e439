"""Logs what happens to requests: a line for each, and a limited number of those of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.core.observer import NoObserver
from ext_proc.ops.events import Event
from ext_proc.ops.faults import evidence
from ext_proc.ops.logs import json_line
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome
    from ext_proc.ops.limited_log import LimitedLog
    from ext_proc.ops.logs import LineWriter


class LogObserver(NoObserver):
    """Writes log lines; never a prompt, a body, a header value or the text of a foreign exception.

    Args:
        log: where lines go.
        lines: takes the lines of requests past structlog, in the same JSON; there are thousands of them a second.
    """

    def __init__(self, log: LimitedLog, lines: LineWriter | None = None) -> None:
        self._log = log
        self._lines = lines

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Log `request_refused`."""
        self._log.say(
            Event.REQUEST_REFUSED,
            request_id=printable(request.request_id),
            model=_model(request),
            operation=request.operation,
            status=refusal.status,
            reason=refusal.reason,
            filters=[str(report) for report in filters],
        )

    def passed(self, reason: str) -> None:
        """Log `request_passed`, at debug level."""
        self._log.say(Event.REQUEST_PASSED, reason=reason)

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Log `exchange_failed`; where in the code only if it is a fault that was not foreseen."""
        self._log.say(Event.EXCHANGE_FAILED, reason=reason, **evidence(error))

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Log `request_finished`."""
        suppressed = self._log.admit_request(outcome.ending)
        if suppressed is None:
            return
        fields = _finished(decision, outcome)
        if suppressed:
            fields["suppressed"] = suppressed
        if self._lines is None:
            self._log.write(Event.REQUEST_FINISHED, fields)
        else:
            self._lines.info(json_line("info", "request_finished", fields))

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Log `strategy_failed` with the place in the code."""
        self._log.say(Event.STRATEGY_FAILED, strategy=strategy, **evidence(error))

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Log `health_changed`."""
        because = {"reason": reason} if reason else {}
        told = {"endpoint": endpoint.address, "pool": endpoint.pool, "state": state, "evidence": evidence}
        self._log.say(Event.HEALTH_CHANGED, **told, **because)


def _finished(decision: Decision, outcome: Outcome) -> dict[str, object]:
    request, usage = decision.request, outcome.usage
    return {
        "request_id": printable(outcome.request_id),
        "decision_id": decision.id,
        "model": _model(request),
        "operation": request.operation,
        "endpoint": outcome.served or decision.endpoints[0].address,
        "status": outcome.status,
        "ending": outcome.ending,
        "attempts": outcome.attempts,
        "prompt_tokens": usage.prompt_tokens or request.prompt_tokens,
        "hit_tokens": decision.hit_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "first_token_ms": None if outcome.first_token is None else round(outcome.first_token * 1e3, 1),
        "duration_ms": round(outcome.duration * 1e3, 1),
        "reason": decision.reason,
    }


def _model(request: InferenceRequest) -> str | None:
    return None if request.model is None else printable(request.model)
