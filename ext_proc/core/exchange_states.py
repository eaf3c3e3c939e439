"""Where an exchange stands, and how it is left with the last answer on its request side."""

from __future__ import annotations

import enum

from ext_proc.core.exchange_messages import BodyMode, Continue, Kind, RequestHeaders
from ext_proc.core.first_token import has_first_token
from ext_proc.core.model import Decision


class State(enum.IntEnum):
    """Where an exchange stands."""

    OPEN = enum.auto()
    AWAIT_BODY = enum.auto()
    AWAIT_PROMPT = enum.auto()
    AWAIT_TURN = enum.auto()
    AWAIT_TOKEN = enum.auto()
    PASSING = enum.auto()
    OBSERVING = enum.auto()
    FINISHED = enum.auto()


def left_with(head: RequestHeaders | None, kind: Kind, decision: Decision | None) -> tuple[State, Continue]:
    """Return the last answer on the request side, and where the exchange stands after it.

    Args:
        head: the beginning of the exchange.
        kind: what is answered.
        decision: the pick, if there is one.
    """
    shown = kind is Kind.REQUEST_BODY and head is not None and head.response_mode is BodyMode.STREAMED
    if shown and decision is not None and has_first_token(decision.request):
        return State.AWAIT_TOKEN, Continue(kind, decision)
    streamed = head is not None and head.request_mode is BodyMode.STREAMED
    clean = head is not None and head.spoofed and decision is None
    skip = kind is Kind.REQUEST_HEADERS and not streamed and head is not None and not head.end_of_stream
    # Envoy 1.40 waits for an answer to each streamed piece; in all other modes it goes on alone.
    state = State.PASSING if streamed else State.FINISHED
    return state, Continue(kind, decision, not streamed, clean, skip)
