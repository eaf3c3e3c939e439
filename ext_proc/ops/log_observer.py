"""Logs what happens to requests: a line for each, and a limited number of those of faults."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ext_proc.core.observer import NoObserver
from ext_proc.ops.events import Event
from ext_proc.ops.faults import evidence
from ext_proc.ops.request_line import Finished, fields, rendered
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome
    from ext_proc.ops.limited_log import LimitedLog
    from ext_proc.ops.logs import LineWriter


class LogObserver(NoObserver):
    """Writes log lines; never a prompt, a body, a header value or the text of a foreign exception.

    Args:
        log: where lines go.
        lines: takes the lines of requests past structlog, in the same JSON; there are thousands of them a second.
        clock: seconds since 1970.
    """

    def __init__(
        self, log: LimitedLog, lines: LineWriter | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._log = log
        self._lines = lines
        self._clock = clock

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
        finished = Finished(self._clock(), suppressed, decision, outcome)
        if self._lines is None:
            self._log.write(Event.REQUEST_FINISHED, fields(finished))
        else:
            self._lines.later(rendered, finished)

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Log `strategy_failed` with the place in the code."""
        self._log.say(Event.STRATEGY_FAILED, strategy=strategy, **evidence(error))

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Log `health_changed`."""
        because = {"reason": reason} if reason else {}
        told = {"endpoint": endpoint.address, "pool": endpoint.pool, "state": state, "evidence": evidence}
        self._log.say(Event.HEALTH_CHANGED, **told, **because)


def _model(request: InferenceRequest) -> str | None:
    return None if request.model is None else printable(request.model)
