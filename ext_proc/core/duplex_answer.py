"""Watches an answer as it passes, and makes of it the outcome of the decision that it answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from ext_proc.core.answer_scan import AnswerScan
from ext_proc.core.duplex_messages import ResponseHeaders
from ext_proc.core.feedback import Feedback
from ext_proc.core.first_token import Piece, has_first_token, read_piece
from ext_proc.core.model import Decision, Ending, Operation, Outcome, Usage
from ext_proc.core.own_answers import OwnAnswer, read_own_answer
from ext_proc.core.status_endings import ending_of_failure, ending_of_status

TOUCH_S: Final = 5.0
"""Seconds between two signs of life of a lease whose answer passes."""

_CLIENT_ERROR: Final = int(HTTPStatus.BAD_REQUEST)
_SERVER_ERROR: Final = int(HTTPStatus.INTERNAL_SERVER_ERROR)
"""Where these begin; members of `HTTPStatus` are slow to get at."""


class DuplexAnswer:
    """What the stream of a decision shows of the answer.

    Args:
        feedback: learns from it.
        decision: what was decided.
        began: when the request came, monotonic seconds.
        shown: True if the answer will come on this stream for certain.
        named: how many of the decision's endpoints Envoy was told, at most.
    """

    __slots__ = (
        "_awaits_token",
        "_began",
        "_decision",
        "_feedback",
        "_first_byte",
        "_headers",
        "_may_be_envoys",
        "_named",
        "_own",
        "_scan",
        "_served",
        "_settled",
        "_shown",
        "_touched",
    )

    def __init__(self, feedback: Feedback, decision: Decision, began: float, *, shown: bool, named: int = 1) -> None:
        self._feedback = feedback
        self._decision = decision
        self._began = began
        self._shown = shown
        self._named = named
        self._headers: ResponseHeaders | None = None
        self._first_byte: float | None = None
        self._served: str | None = None
        self._awaits_token = False
        self._scan: AnswerScan | None = None
        self._may_be_envoys = False
        self._own: OwnAnswer | None = None
        self._touched = began
        self._settled = False
        if shown:
            feedback.hold(decision.id)

    def begin(self, headers: ResponseHeaders, now: float) -> None:
        """Take the headers."""
        self._headers = headers
        self._served = headers.served
        self._first_byte = now - self._decision.decided_at
        events = headers.is_stream
        if headers.is_json:
            wants_id = self._decision.request.operation is Operation.RESPONSE
            self._scan = AnswerScan(events=events, wants_id=wants_id)
        succeeds = headers.status < _CLIENT_ERROR
        self._may_be_envoys = not headers.forwarded and headers.status >= _SERVER_ERROR
        if headers.served is not None and headers.served != self._decision.endpoints[0].address:
            self._feedback.answering(self._decision.id, headers.served, now, succeeds=succeeds)
        self._awaits_token = succeeds and events and has_first_token(self._decision.request)

    def piece(self, body: bytes, now: float) -> None:
        """Take a piece of the body."""
        if self._settled:
            return
        if self._awaits_token and read_piece(body) is not Piece.PRELUDE:
            self._awaits_token = False
            if read_piece(body) is Piece.TOKEN:
                self._feedback.first_token(self._decision.id, now, self._served)
        if self._scan is not None:
            self._scan.feed(body)
        if self._may_be_envoys and self._own is None:
            self._own = read_own_answer(body)
        if now - self._touched > TOUCH_S:
            self._touched = now
            self._feedback.touch(self._decision.id, now)

    @property
    def is_patient(self) -> bool:
        """Whether pieces may be looked at late and several at once, as nothing is awaited of the next one."""
        return not (self._settled or self._awaits_token or self._scan is None)

    def end(self, now: float) -> None:
        """Note that the answer came to its end."""
        if self._scan is not None:
            self._scan.finish()
        is_told = self._own is not None and self._own.is_exact
        if self._may_be_envoys and not is_told and self._feedback.streams.has_log(now):
            self.let_go()  # Envoy's own answer in words that it was given: the log knows why it was made
            return
        self._settle(self._ending(), now)

    def gone(self, now: float, *, reached: bool) -> None:
        """Note that the stream ended before the answer did, or that none came.

        Why is not to be seen here: the client may have left, the engine may have died, or Envoy does not show the whole
        of an answer. An access log knows. Where there is none, nobody is blamed.

        Args:
            now: monotonic seconds.
            reached: False if Envoy never got the decision.
        """
        if self._settled:
            return
        if self._scan is not None:
            self._scan.finish()
            if self._scan.has_ended:  # the client read it to its end, and did not wait for that of the stream
                self._settle(self._ending(), now)
                return
        self.let_go()
        if not reached or self._feedback.streams.has_log(now):
            return
        if self._shown:
            self._settle(Ending.CLIENT_GONE, now)
        elif self._headers is not None and self._ending() is not Ending.OK:
            self._settle(self._ending(), now)

    def let_go(self) -> None:
        """Leave the decision to the access log, or to its expiry."""
        self._feedback.hold(self._decision.id, held=False)

    def _settle(self, ending: Ending, now: float) -> None:
        if self._settled:
            return
        self._settled = True
        decision, headers, scan = self._decision, self._headers, self._scan
        chosen = decision.endpoints[0].address
        served = self._served or (chosen if headers is not None else None)
        outcome = Outcome(
            decision_id=decision.id,
            ending=ending,
            status=headers.status if headers is not None else 0,
            served=None if ending is Ending.LOCAL else served,
            attempts=1 if served is None or served == chosen else _attempts(decision, served, self._named),
            duration=now - self._began,
            first_byte=self._first_byte,
            usage=Usage() if scan is None else scan.usage,
            response_id="" if scan is None else scan.response_id,
            request_id=decision.request.request_id,
        )
        self._feedback.settle_stream(outcome, now)

    def _ending(self) -> Ending:
        status = 0 if self._headers is None else self._headers.status
        if self._own is not None:
            return self._own.ending
        if status >= _CLIENT_ERROR or self._scan is None:
            return ending_of_status(status)
        if self._scan.failed:
            return ending_of_failure(self._scan.failed)
        return Ending.CUT if self._scan.is_cut else Ending.OK


def _attempts(decision: Decision, served: str, named: int) -> int:
    """Infer how many endpoints Envoy tried: it goes through the list it got in order, and then chooses by itself."""
    addresses = [endpoint.address for endpoint in decision.endpoints[:named]]
    return addresses.index(served) + 1 if served in addresses else 2
