"""One HTTP exchange in full duplex, as a state machine: events of an ext_proc stream in, lists of actions out.

Where Envoy streams a body in full duplex it goes on by itself and waits for nothing: it is we who hold the body back
until the pick is made, and who give every byte of it back, in order. The decision itself is made by an `Exchange` that
believes it has a buffered body. The moves are the table `DuplexExchange._moves`, for each side by its own state; what
it lacks is ignored, since an answer that nobody asked for would end the request.

    request:  OPEN → COLLECTING → (WAITING) → PASSING → ENDED      full duplex
              OPEN → ASKING                                        any other mode: an answer to each message
    response: OPEN → PASSING → ENDED                               both

A stream of this kind is never ended by us before Envoy ends it, except by a refusal: what is left of a body would be
lost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ext_proc.core.duplex_answer import DuplexAnswer
from ext_proc.core.duplex_messages import OF_RESPONSE, DuplexAction, DuplexEvent, ResponseHeaders, pieces
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import (
    Abort,
    Action,
    BodyMode,
    Continue,
    Event,
    GoDuplex,
    Ignore,
    Kind,
    Message,
    Refuse,
    RequestHeaders,
    Wait,
    WaitForTurn,
)
from ext_proc.core.exchange_states import State
from ext_proc.core.renaming import Renaming
from ext_proc.core.token_hits import TokenPrompt

_FULL: Final = BodyMode.FULL_DUPLEX_STREAMED
_NOTHING: Final[tuple[DuplexAction, ...]] = ()
_GO_ON: Final = {kind: (Continue(kind),) for kind in Kind}


class Side(enum.IntEnum):
    """Where one direction of an exchange stands."""

    OPEN = enum.auto()
    ASKING = enum.auto()
    COLLECTING = enum.auto()
    WAITING = enum.auto()
    PASSING = enum.auto()
    ENDED = enum.auto()


_UNDECIDED: Final = (Side.COLLECTING, Side.WAITING)


class DuplexExchange:
    """One HTTP request on a stream of which at least one body is full duplex.

    Args:
        exchange: decides, and has not begun.

    Attributes:
        unseen: takes pieces in the middle of an answer that pass as they are, to be looked at with the next one that is
            received: `MOST_UNSEEN` of up to `LONGEST_UNSEEN` bytes. None where each must be received.
    """

    __slots__ = (
        "_answer",
        "_began",
        "_body",
        "_clock",
        "_ended_by",
        "_exchange",
        "_feedback",
        "_observer",
        "_policy",
        "_renaming",
        "_request_full",
        "_response_full",
        "_response_mode",
        "request",
        "response",
        "unseen",
    )

    def __init__(self, exchange: Exchange) -> None:
        self.request = Side.OPEN
        self.response = Side.OPEN
        self._exchange = exchange
        self._feedback, self._observer, self._policy, self._clock = exchange.shared
        self._began = 0.0
        self._request_full = False
        self._response_mode = BodyMode.NONE
        self._response_full = False
        self._body: bytes | bytearray = b""
        self._ended_by: Kind | None = None
        self._answer: DuplexAnswer | None = None
        self.unseen: list[bytes] | None = None
        self._renaming: Renaming | None = None

    def begin(self, event: Event) -> Sequence[DuplexAction]:
        """Take the first event, which says how the bodies come."""
        modes = (event.request_mode, event.response_mode) if isinstance(event, RequestHeaders) else event.modes
        request_mode, self._response_mode = modes or (BodyMode.NONE, BodyMode.NONE)
        self._request_full, self._response_full = request_mode is _FULL, self._response_mode is _FULL
        self._began = self._clock()
        return self._begin(event) if isinstance(event, RequestHeaders) else self.receive(event)

    def receive(self, event: DuplexEvent) -> Sequence[DuplexAction]:
        """Take one event and return what to do, in order."""
        if isinstance(event, Message):
            kind = event.kind
            side = self.response if kind in OF_RESPONSE else self.request
        elif isinstance(event, ResponseHeaders):
            kind, side = Kind.RESPONSE_HEADERS, self.response
        else:
            kind, side = Kind.REQUEST_HEADERS, self.request
        move = self._moves.get((side, kind))
        if move is None:
            return _NOTHING
        try:
            return move(self, event)
        except Exception as error:
            if self._answer is None:
                raise
            self._lose_sight(error)
            return move(self, event)

    def _lose_sight(self, error: Exception) -> None:
        """Watch the answer no more: a fault of ours must cost an outcome, not the answer."""
        self._observer.failed("internal", error)
        answer, self._answer, self.unseen = self._answer, None, None
        if answer is not None:
            answer.let_go()

    def _pass_unseen(self) -> None:
        """Let pieces pass unseen from now on, if nothing is awaited of the next one."""
        answer, full = self._answer, self._response_full and self.response is Side.PASSING
        self.unseen = [] if full and answer is not None and answer.is_patient else None

    def _catch_up(self) -> None:
        """Look at the pieces that passed unseen; no more will."""
        unseen, self.unseen = self.unseen, None
        if unseen and self._answer is not None:
            self._answer.piece(b"".join(unseen), self._clock())

    def resume(self, tokens: TokenPrompt | None) -> Sequence[DuplexAction]:
        """Go on after a `Wait`, with the prompt's tokens or, if they are not to be had, without."""
        return self._decided(self._exchange.resume(tokens)) if self.request is Side.WAITING else _NOTHING

    def turned(self, action: Action) -> Sequence[DuplexAction]:
        """Go on after a `WaitForTurn`, with the action that the turn has."""
        return self._decided(action) if self.request is Side.WAITING else _NOTHING

    def give_up(self) -> None:
        """Note that the request has waited for its turn as long as it may; it gets its action by that."""
        self._exchange.give_up()

    def patience(self) -> float | None:
        """Return the seconds for which the rest of a body is still waited for; None if none is."""
        if self.request is not Side.COLLECTING:
            return None
        return max(self._began + self._policy.collect_s - self._clock(), 0.0)

    def hurry(self) -> Sequence[DuplexAction]:
        """Decide on what came of the body; the rest goes on as it comes."""
        return self._decide(complete=False) if self.request is Side.COLLECTING else _NOTHING

    def close(self, *, delivered: bool) -> None:
        """End the exchange; a decision that Envoy did not get is taken back, of any other something became."""
        reached = delivered or self.response is not Side.OPEN or self._exchange.has_arrived
        if self.unseen:
            try:
                self._catch_up()
            except Exception as error:  # noqa: BLE001  as in `receive`
                self._lose_sight(error)
        if self._answer is not None:
            self._answer.gone(self._clock(), reached=reached)
        self._exchange.close(delivered=reached)
        self._answer = None
        self._body = b""
        self.request = self.response = Side.ENDED

    def _begin(self, event: RequestHeaders) -> Sequence[DuplexAction]:
        if event.end_of_stream:
            self._ended_by = Kind.REQUEST_HEADERS
        asked = msgspec.structs.replace(
            event,
            request_mode=BodyMode.BUFFERED_PARTIAL if self._request_full else event.request_mode,
            response_mode=BodyMode.NONE,
            anywhere=True,
        )
        action = self._exchange.receive(asked)
        if self._request_full and self._exchange.state is State.AWAIT_BODY:
            self.request = Side.COLLECTING
            return _NOTHING
        return self._decided(action)

    def _begin_late(self, event: Message) -> Sequence[DuplexAction]:
        """Begin with another message than the headers, which are not sent then: there is nothing to decide."""
        if not self._request_full:
            return _GO_ON[event.kind]
        self.request = Side.PASSING
        return self.receive(event)

    def _collect(self, event: Message) -> Sequence[DuplexAction]:
        if not self._body:  # most often there is one piece only, and its end, which then is copied nowhere
            self._body = event.body
        elif event.body:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += event.body
        if event.end_of_stream:
            self._ended_by = Kind.REQUEST_BODY
            return self._decide(complete=True)
        return self._decide(complete=False) if len(self._body) > self._policy.collect_bytes else _NOTHING

    def _collected(self, event: Message) -> Sequence[DuplexAction]:  # noqa: ARG002
        self._ended_by = Kind.REQUEST_TRAILERS
        return self._decide(complete=True)

    def _decide(self, *, complete: bool) -> Sequence[DuplexAction]:
        body = self._body = bytes(self._body)
        if body or self._ended_by is Kind.REQUEST_BODY:
            event: Event = Message(Kind.REQUEST_BODY, body, complete)
        else:  # there is no body to understand, so what the headers say must do
            event = Message(Kind.REQUEST_TRAILERS)
        return self._decided(self._exchange.receive(event))

    def _decided(self, action: Action) -> Sequence[DuplexAction]:
        """Turn an answer of the deciding exchange into answers here."""
        if not isinstance(action, Continue):
            return self._held_up(action)
        if action.decision is not None:
            shown = self._response_mode is not BodyMode.NONE
            named = self._policy.named
            self._answer = DuplexAnswer(self._feedback, action.decision, self._began, shown=shown, named=named)
        if action.body is not None and self._request_full:
            self._body = action.body
        if action.asked and action.decision is not None and self._response_full:
            self._renaming = Renaming(action.decision.request.model or "", action.asked)
        kind = Kind.REQUEST_HEADERS if self._request_full else action.kind
        if action.kind is not kind or action.finished or action.skip_body:
            action = msgspec.structs.replace(action, kind=kind, finished=False, skip_body=False)
        if not self._request_full:
            self.request = Side.ASKING
            return (action,)
        return (action, *self._release())

    def _held_up(self, action: Wait | WaitForTurn | Refuse | Abort | Ignore | GoDuplex) -> Sequence[DuplexAction]:
        if isinstance(action, Ignore | GoDuplex):
            return _NOTHING
        if isinstance(action, Refuse | Abort):
            self.request = self.response = Side.ENDED
            return (action,)
        self.request = Side.WAITING
        if self._request_full and isinstance(action, WaitForTurn):  # in full duplex Envoy is patient by itself
            action = msgspec.structs.replace(action, extension=0.0)
        return (action,)

    def _release(self) -> Sequence[DuplexAction]:
        """Give back what was collected of the body, and its end if that has come."""
        body, self._body = bytes(self._body), b""
        self.request = Side.PASSING if self._ended_by is None else Side.ENDED
        held: Sequence[DuplexAction] = pieces(
            Kind.REQUEST_BODY, body, end_of_stream=self._ended_by is Kind.REQUEST_BODY
        )
        return (*held, *_GO_ON[Kind.REQUEST_TRAILERS]) if self._ended_by is Kind.REQUEST_TRAILERS else held

    def _ask(self, event: Message) -> Sequence[DuplexAction]:
        if self._exchange.state is State.FINISHED:
            return _GO_ON[event.kind]
        return self._decided(self._exchange.receive(event))

    def _request_piece(self, event: Message) -> Sequence[DuplexAction]:
        if event.end_of_stream:
            self.request = Side.ENDED
        return pieces(Kind.REQUEST_BODY, event.body, end_of_stream=event.end_of_stream)

    def _request_trailers(self, event: Message) -> Sequence[DuplexAction]:
        self.request = Side.ENDED
        return _GO_ON[event.kind]

    def _response_headers(self, event: ResponseHeaders | Message) -> Sequence[DuplexAction]:
        if self.request in _UNDECIDED:  # answered before it was sent on, so the answer is Envoy's own
            self.request, self._body = Side.ENDED, b""
        self.response = Side.ENDED if event.end_of_stream else Side.PASSING
        if self._answer is not None and isinstance(event, ResponseHeaders):
            now = self._clock()
            self._answer.begin(event, now)
            if event.end_of_stream:
                self._answer.end(now)
        if self._renaming is None:
            self._pass_unseen()
            return _GO_ON[Kind.RESPONSE_HEADERS]
        if event.end_of_stream or not (isinstance(event, ResponseHeaders) and event.is_json):
            self._renaming = None
            return _GO_ON[Kind.RESPONSE_HEADERS]
        return (Continue(Kind.RESPONSE_HEADERS, unsized=True),)

    def _response_piece(self, event: Message) -> Sequence[DuplexAction]:
        answer, last = self._answer, event.end_of_stream
        if self.response is Side.OPEN:  # nobody has seen what it is, nor taken its length away
            self._renaming = None
        if answer is not None:
            now, unseen = self._clock(), self.unseen
            answer.piece(b"".join((*unseen, event.body)) if unseen else event.body, now)
            # Of a body that is partly buffered nothing follows what was sent of it.
            if last or self._response_mode is BodyMode.BUFFERED_PARTIAL:
                answer.end(now)
        self.response = Side.ENDED if last else Side.PASSING
        if not self._response_full:
            return _GO_ON[event.kind]
        if self._renaming is None:
            self._pass_unseen()
            return pieces(event.kind, event.body, end_of_stream=last)
        return pieces(event.kind, self._renaming.feed(event.body, whole=last), end_of_stream=last)

    def _response_trailers(self, event: Message) -> Sequence[DuplexAction]:
        self._catch_up()
        if self._answer is not None:
            self._answer.end(self._clock())
        self.response = Side.ENDED
        if self._renaming is None:
            return _GO_ON[event.kind]
        rest = pieces(Kind.RESPONSE_BODY, self._renaming.feed(b"", whole=True), end_of_stream=False)
        return (*rest, *_GO_ON[event.kind])

    # The state table: what to do with each kind of message in each state of its side.
    _moves: ClassVar[dict[tuple[Side, Kind], Callable[[DuplexExchange, Any], Sequence[DuplexAction]]]] = {
        (Side.OPEN, Kind.REQUEST_HEADERS): _begin,
        (Side.OPEN, Kind.REQUEST_BODY): _begin_late,
        (Side.OPEN, Kind.REQUEST_TRAILERS): _begin_late,
        (Side.ASKING, Kind.REQUEST_BODY): _ask,
        (Side.ASKING, Kind.REQUEST_TRAILERS): _ask,
        (Side.COLLECTING, Kind.REQUEST_BODY): _collect,
        (Side.COLLECTING, Kind.REQUEST_TRAILERS): _collected,
        (Side.PASSING, Kind.REQUEST_BODY): _request_piece,
        (Side.PASSING, Kind.REQUEST_TRAILERS): _request_trailers,
        (Side.OPEN, Kind.RESPONSE_HEADERS): _response_headers,
        (Side.OPEN, Kind.RESPONSE_BODY): _response_piece,
        (Side.OPEN, Kind.RESPONSE_TRAILERS): _response_trailers,
        (Side.PASSING, Kind.RESPONSE_BODY): _response_piece,
        (Side.PASSING, Kind.RESPONSE_TRAILERS): _response_trailers,
    }
