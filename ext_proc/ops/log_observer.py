"""Logs what happens to requests: a line for each, and at most ten a second for each kind of fault."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING

import msgspec

from ext_proc.core.errors import KvpickerError
from ext_proc.core.model import ILLNESS, Ending
from ext_proc.core.observer import NoObserver
from ext_proc.ops.events import Event
from ext_proc.ops.logs import json_line
from ext_proc.ops.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome
    from ext_proc.ops.logs import LineWriter, Log

LINES_PER_SECOND = 10


class _Window(msgspec.Struct):
    start: float
    lines: int = 0
    suppressed: int = 0


class LineLimit:
    """Lets ten lines a second through for each key and counts the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def admit(self, key: str) -> int | None:
        """Ask for a line: None holds it back, a number says how many were held back since the last one."""
        now = self._clock()
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now)
        if now - window.start >= 1.0:
            window.start, window.lines = now, 0
        if window.lines >= LINES_PER_SECOND:
            window.suppressed += 1
            return None
        window.lines += 1
        suppressed, window.suppressed = window.suppressed, 0
        return suppressed

    def drain(self) -> dict[str, int]:
        """Take the counts that no line has reported yet."""
        counts = {key: window.suppressed for key, window in self._windows.items() if window.suppressed}
        self._windows.clear()
        return counts


_LIMITED = ILLNESS | {Ending.LOST}


class LogObserver(NoObserver):
    """Writes log lines; never a prompt, a body, a header value or the text of a foreign exception.

    `lines` takes the lines of requests past structlog, in the same JSON; there are thousands of them a second.

    Requests that failed on an engine's side and refusals count as faults: beyond ten a second of one ending
    or reason they are only counted, since an outage would otherwise fill the disk with one message.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic, lines: LineWriter | None = None) -> None:
        self._log = log
        self._lines = lines
        self._limit = LineLimit(clock)
        # Asked once: a request's line has many fields, and gathering them for nothing costs more than all the rest.
        self._tells_requests = log.is_enabled_for(logging.INFO)

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Log `request_refused`."""
        fields = {
            "request_id": printable(request.request_id),
            "model": _model(request),
            "operation": request.operation,
            "status": refusal.status,
            "reason": refusal.reason,
            "filters": [str(report) for report in filters],
        }
        self._limited(Event.REQUEST_REFUSED, refusal.reason, fields)

    def passed(self, reason: str) -> None:
        """Log `request_passed`, at debug level."""
        self._log.debug(Event.REQUEST_PASSED.name_, reason=reason)

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Log `exchange_failed`; where in the code only if it is a fault that was not foreseen."""
        self._limited(Event.EXCHANGE_FAILED, reason, {"reason": reason, **_evidence(error)})

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Log `request_finished`."""
        if not self._tells_requests:
            return
        suppressed: int | None = 0
        if outcome.ending in _LIMITED:
            suppressed = self._limit.admit(f"{Event.REQUEST_FINISHED.name_} {outcome.ending}")
            if suppressed is None:
                return
        fields = _finished(decision, outcome)
        if suppressed:
            fields["suppressed"] = suppressed
        if self._lines is None:
            self._log.info(Event.REQUEST_FINISHED.name_, **fields)
        else:
            self._lines.info(json_line("info", "request_finished", fields))

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Log `strategy_failed` with the place in the code."""
        self._limited(Event.STRATEGY_FAILED, strategy, {"strategy": strategy, **_evidence(error)})

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Log `health_changed`."""
        fields = {"endpoint": endpoint.address, "pool": endpoint.pool, "state": state, "evidence": evidence}
        if reason:
            fields["reason"] = reason
        self._limited(Event.HEALTH_CHANGED, "", fields)

    def close(self) -> None:
        """Log how many lines were held back and not reported yet."""
        for key, count in self._limit.drain().items():
            self._write(Event.LINES_SUPPRESSED, {"kind": key, "suppressed": count})

    def _limited(self, event: Event, kind: str, fields: Mapping[str, object]) -> None:
        suppressed = self._limit.admit(f"{event.name_} {kind}".strip())
        if suppressed is None:
            return
        self._write(event, {**fields, "suppressed": suppressed} if suppressed else fields)

    def _write(self, event: Event, fields: Mapping[str, object]) -> None:
        getattr(self._log, event.level)(event.name_, **fields)


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


def _evidence(error: BaseException | None) -> dict[str, object]:
    """What may be told of an error: the text of our own, the type and place of any other.

    Foreign messages may quote what they choked on, and that may be a prompt or a credential.
    """
    if error is None:
        return {}
    if isinstance(error, KvpickerError):
        return {"error": type(error).__name__, "message": printable(str(error))}
    frames = traceback.extract_tb(error.__traceback__)
    return {"error": type(error).__name__, "at": [f"{f.filename}:{f.lineno} {f.name}" for f in frames[-8:]]}
