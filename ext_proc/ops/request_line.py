"""The log line of a finished request: who asked for what, where it went, why, and what came of it."""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec

from ext_proc.core.model import Decision, Outcome
from ext_proc.ops.logs import json_line
from ext_proc.ops.text import printable

_ENCODE: Final = msgspec.json.Encoder(enc_hook=str).encode


class Finished(msgspec.Struct, frozen=True, gc=False):
    """What a line is made of, if anybody reads it.

    Attributes:
        at: when the request ended, seconds since 1970.
        suppressed: lines like it that were held back since the last one.
        decision: where the request was sent, and why.
        outcome: what came of it.
    """

    at: float
    suppressed: int
    decision: Decision
    outcome: Outcome


class RequestLine(msgspec.Struct, gc=False):
    """The fields of the line, in their order."""

    time: dt.datetime
    level: str
    event: str
    request_id: str
    decision_id: str
    model: str | None
    operation: str
    endpoint: str
    status: int
    ending: str
    attempts: int
    prompt_tokens: int
    hit_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    first_token_ms: float | None
    duration_ms: float
    reason: str
    suppressed: int | msgspec.UnsetType = msgspec.UNSET


def described(finished: Finished) -> RequestLine:
    """Fill in the line of a request."""
    decision, outcome = finished.decision, finished.outcome
    request, usage = decision.request, outcome.usage
    return RequestLine(
        dt.datetime.fromtimestamp(finished.at, dt.UTC),
        "info",
        "request_finished",
        printable(outcome.request_id),
        decision.id,
        None if request.model is None else printable(request.model),
        request.operation,
        outcome.served or decision.endpoints[0].address,
        outcome.status,
        outcome.ending,
        outcome.attempts,
        usage.prompt_tokens or request.prompt_tokens,
        decision.hit_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        None if outcome.first_token is None else round(outcome.first_token * 1e3, 1),
        round(outcome.duration * 1e3, 1),
        decision.reason,
        finished.suppressed or msgspec.UNSET,
    )


def fields(finished: Finished) -> dict[str, object]:
    """Return what structlog is told of a request; it adds time, level and event by itself."""
    told = msgspec.to_builtins(described(finished), enc_hook=str)
    return {name: value for name, value in told.items() if name not in {"time", "level", "event"}}


def rendered(finished: Finished) -> bytes:
    """Render the line as JSON."""
    line = described(finished)
    try:
        return _ENCODE(line)
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form, and a log line must not fail.
        return json_line(line.level, line.event, fields(finished))
