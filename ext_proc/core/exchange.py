"""One HTTP exchange as a state machine: events of an ext_proc stream in, actions out.

Every message outside duplex gets exactly one answer of its own kind and never an unsolicited one; the pick goes with
the last answer on the request side, and then the stream is finished: Envoy goes on without us and nothing of the
response comes here. Only where Envoy shows a streamed answer the stream lives on, until the first token. The moves are
the table `Exchange._moves`; what it lacks is a breach of protocol, answered with a bare continue and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from ext_proc.core.errors import InternalFailure, Refusal, Saturated
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
from ext_proc.core.exchange_policy import ExchangePolicy
from ext_proc.core.exchange_states import State, left_with
from ext_proc.core.feedback import Feedback
from ext_proc.core.first_token import Piece, read_piece
from ext_proc.core.generator import Generator
from ext_proc.core.model import Api, Decision, Ending, InferenceRequest, Outcome
from ext_proc.core.observer import Observer
from ext_proc.core.picker import EndpointPicker, Rejection
from ext_proc.core.prompts import Route, classify
from ext_proc.core.telling import tell
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.core.turn import Turn
from ext_proc.core.understanding import Rewritten, by_body, by_headers, unread
from ext_proc.core.unknown_paths import BY_MODEL, heeded, route_unknown

IGNORE = Ignore()
GO_DUPLEX = GoDuplex()
NO_GRPC = Abort(
    "mode_grpc",
    "kvpicker does not serve body mode GRPC; set request_body_mode BUFFERED_PARTIAL and response_body_mode NONE",
)

_WHOLE_BODY_MODES = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_MODES_APART = frozenset({BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC})


class Exchange:
    """One HTTP request on one ext_proc stream.

    Args:
        picker: makes the decision.
        feedback: hears of first tokens, and of a decision whose answer never reached Envoy.
        observer: hears what happens.
        policy: what all exchanges share.
        clock: monotonic seconds.
        generator: breaks ties.

    Attributes:
        state: where it stands.
        names: which headers say whose a request is, and what is wished for it.
    """

    __slots__ = (
        "_api",
        "_arrived",
        "_clock",
        "_decision",
        "_feedback",
        "_generator",
        "_head",
        "_held",
        "_observer",
        "_picker",
        "_policy",
        "_request",
        "_rewritten",
        "_route",
        "_turn",
        "names",
        "state",
    )

    def __init__(
        self,
        picker: EndpointPicker,
        feedback: Feedback,
        observer: Observer,
        policy: ExchangePolicy,
        clock: Callable[[], float],
        generator: Generator,
    ) -> None:
        self.state = State.OPEN
        self.names = policy.names
        self._picker = picker
        self._feedback = feedback
        self._observer = observer
        self._policy = policy
        self._clock = clock
        self._generator = generator
        self._api = Api.OPENAI
        self._head: RequestHeaders | None = None
        self._route: Route | None = None
        self._request: InferenceRequest | None = None
        self._decision: Decision | None = None
        self._turn: Turn | None = None
        self._rewritten: Rewritten | None = None
        self._arrived = False
        self._held = 0

    @property
    def shared(self) -> tuple[Feedback, Observer, ExchangePolicy, Callable[[], float]]:
        """What a duplex exchange needs of this one."""
        return self._feedback, self._observer, self._policy, self._clock

    @property
    def has_arrived(self) -> bool:
        """Whether Envoy has the pick for certain, because it went on after it."""
        return self._arrived

    def receive(self, event: Event) -> Action:
        """Take one event and return what to do; a fault of our own becomes the configured answer."""
        kind = Kind.REQUEST_HEADERS if isinstance(event, RequestHeaders) else event.kind
        # Envoy sends the next message when it has the last answer, and with it the pick.
        self._arrived = self._decision is not None
        move = self._moves.get((self.state, kind), Exchange._unexpected)
        try:
            return move(self, event)
        except Exception as error:  # noqa: BLE001  a fault must cost one pick, not the request
            return self._fail(kind, error, event)

    def resume(self, tokens: TokenPrompt | None) -> Action:
        """Go on after a `Wait`, with the prompt's tokens or, if they are not to be had, without."""
        request, self._request = self._request, None
        if request is None or self.state is not State.AWAIT_PROMPT:
            return IGNORE
        try:
            return self._pick(Kind.REQUEST_BODY, request, tokens)
        except Exception as error:  # noqa: BLE001  as above
            return self._fail(Kind.REQUEST_BODY, error)

    def _fail(self, kind: Kind, error: Exception, event: Event | None = None) -> Action:
        self._observer.failed("internal", error)
        self._take_back()
        if self._arrived and isinstance(event, Message):
            return self._let_go(event)
        if self._policy.refuse_on_failure:
            return self._refuse(InternalFailure("The endpoint picker failed. Try again."))
        head, self.state = self._head, State.PASSING
        clean = head is not None and head.spoofed and (head.anywhere or kind is Kind.REQUEST_HEADERS)
        return Continue(kind, clean=clean)

    def close(self, *, delivered: bool) -> None:
        """End the exchange; a decision that Envoy did not get is taken back, and a place in a queue is given up."""
        if self._turn is not None and self._policy.admission is not None:
            self._policy.admission.leave(self._turn, self._clock())
            self._turn = None
        if not delivered:
            self._take_back()
        self.state = State.FINISHED

    def _take_back(self) -> None:
        if self._decision is not None and not self._arrived:
            gone = Outcome(decision_id=self._decision.id, ending=Ending.CLIENT_GONE)
            self._decision = None
            self._feedback.settle(gone, self._clock())

    def _headers(self, event: RequestHeaders) -> Action:
        self._head = event
        if event.observing:
            self.state = State.OBSERVING
            return IGNORE
        if event.request_mode in _MODES_APART or event.response_mode in _MODES_APART:
            return self._apart(event.request_mode, event.response_mode)
        route = classify(event.method, event.head.path) or route_unknown(event, self._picker)
        if route is None:
            return self._pass("unknown_path")
        self._route = route
        self._api = route.api
        if event.end_of_stream or event.upgrade or not route.wants_body:
            return self._pick(Kind.REQUEST_HEADERS, by_headers(route, event))
        if event.request_mode in _WHOLE_BODY_MODES:
            self.state = State.AWAIT_BODY
            return Continue(Kind.REQUEST_HEADERS, clean=event.spoofed)
        return self._pick_unread(route, event)

    def _body(self, event: Message) -> Action:
        assert self._route is not None and self._head is not None  # noqa: PT018, S101  AWAIT_BODY comes after _headers
        policy, head = self._policy, self._head.head
        if self._head.anywhere:  # full duplex, where it is we who hold the body back
            self._held = len(event.body)
        request, self._rewritten = by_body(self._route, self._head, event, policy.inspect_bytes, self._observer)
        if self._route is BY_MODEL:
            request = heeded(request, self._picker)
        if self._rewritten is not None:
            self._held += len(self._rewritten.body)
        if policy.tokens is None or request.unhashed is not None:
            return self._pick(Kind.REQUEST_BODY, request)
        found = policy.tokens.find(request, head, event.body if self._rewritten is None else self._rewritten.body)
        if found is None or isinstance(found, TokenPrompt):
            return self._pick(Kind.REQUEST_BODY, request, found)
        self._request = request
        self.state = State.AWAIT_PROMPT
        return Wait(found)

    def _bodyless(self, event: Message) -> Action:
        assert self._route is not None and self._head is not None  # noqa: PT018, S101  AWAIT_BODY comes after _headers
        return self._pick(event.kind, by_headers(self._route, self._head))

    def _pick(self, kind: Kind, request: InferenceRequest, tokens: TokenPrompt | None = None) -> Action:
        head, admission = self._head, self._policy.admission
        if head is not None and head.request_id:  # nobody else has the request yet
            msgspec.structs.force_setattr(request, "request_id", head.request_id)
        began, subset = self._clock(), head.subset if head else None
        if admission is not None and len(admission) and admission.is_behind(request, subset, self._priority()):
            return self._wait_for_turn(kind, request, tokens)
        made = self._picker.pick(request, began, self._generator, subset, tokens)
        if isinstance(made, Decision):
            return self._decided(kind, made, began)
        if admission is not None and admission.may_wait(request, made.refusal, subset):
            return self._wait_for_turn(kind, request, tokens, made)
        return self._rejected(request, made)

    def _decided(self, kind: Kind, made: Decision, began: float) -> Action:
        self._decision = made
        self._observer.decided(made, self._clock() - began)
        self.state, action = left_with(self._head, kind, made)
        if self._rewritten is not None:
            body, asked, self._rewritten = self._rewritten.body, self._rewritten.asked, None
            action = msgspec.structs.replace(action, body=body, asked=asked)
        return self._told(action, made)

    def _rejected(self, request: InferenceRequest, made: Rejection) -> Action:
        self._observer.refused(request, made.refusal, made.filters)
        return self._told(self._refuse(made.refusal), made)

    def _wait_for_turn(
        self, kind: Kind, request: InferenceRequest, tokens: TokenPrompt | None, found: Rejection | None = None
    ) -> Action:
        """Let the request wait; `found` is what came of trying it, None if others wait before it."""
        admission, head, now = self._policy.admission, self._head, self._clock()
        assert admission is not None and head is not None  # noqa: PT018, S101  who calls has seen both
        turn = Turn(self, kind, request, now, tokens, head.subset, head.tenant, self._priority())
        turn.filters, turn.held = () if found is None else found.filters, self._held
        refusal = admission.join(turn, now, cold=None if found is None else not isinstance(found.refusal, Saturated))
        if refusal is not None:
            return self.turn_away(turn, refusal)
        self._turn = turn
        self.state = State.AWAIT_TURN
        return WaitForTurn(turn, self._policy.extension and turn.deadline - now + self._policy.extension)

    def take_turn(self, turn: Turn, now: float) -> Action | None:
        """Try the ordinary pick for the request that waits; None if there is still no place for it."""
        admission, kind = self._policy.admission, Kind(turn.kind)
        request = msgspec.structs.replace(turn.request, waited=now - turn.since)
        try:
            made = self._picker.pick(request, now, self._generator, turn.subset, turn.tokens)
            if isinstance(made, Decision):
                action = self._decided(kind, made, now)
                turn.placed = True
                return action
            if admission is not None and admission.may_wait(request, made.refusal, turn.subset):
                turn.cold, turn.filters = not isinstance(made.refusal, Saturated), made.filters
                return None
            return self._rejected(request, made)
        except Exception as error:  # noqa: BLE001  a fault must cost one pick, not the request
            return self._fail(kind, error)

    def turn_away(self, turn: Turn, refusal: Refusal) -> Action:
        """Refuse the request that waits, or was to."""
        filters = turn.filters or self._picker.left(turn.request, self._clock(), self._generator, turn.subset)
        return self._rejected(turn.request, Rejection(refusal, filters))

    def give_up(self) -> None:
        """Note that the request has waited as long as it may; it gets its answer by that."""
        if self._turn is not None and self._policy.admission is not None:
            self._policy.admission.expire(self._turn, self._clock())

    def _priority(self) -> int:
        return 0 if self._head is None else self._policy.priority(self._head.priority)

    def _pick_unread(self, route: Route, event: RequestHeaders) -> Action:
        """Pick by load alone: the answer to the headers is the last that can carry a pick in this mode."""
        request = unread(route, event)
        if request.model is None and not self._picker.picks_without_model():
            return self._pass("body_not_sent")
        return self._pick(Kind.REQUEST_HEADERS, request)

    def _told(self, action: Continue | Refuse, made: Decision | Rejection) -> Action:
        asker = self._head.asker if self._head is not None else ""
        return tell(self._policy, action, made, asker) if asker or self._policy.show_decisions else action

    def _piece(self, event: Message) -> Action:
        piece = read_piece(event.body)
        if piece is Piece.PRELUDE and not event.end_of_stream:
            return Continue(event.kind)
        if piece is Piece.TOKEN and self._decision is not None:
            self._feedback.first_token(self._decision.id, self._clock(), event.served)
        return self._let_go(event)

    def _let_go(self, event: Message) -> Action:
        """Finish the stream; Envoy passes the rest of the response by itself."""
        self.state = State.FINISHED
        return Continue(event.kind, finished=True)

    def _pass(self, reason: str) -> Action:
        self._observer.passed(reason)
        self.state, action = left_with(self._head, Kind.REQUEST_HEADERS, None)
        return action

    def _refuse(self, refusal: Refusal) -> Refuse:
        self.state = State.FINISHED
        return Refuse(refusal, self._api)

    def _apart(self, *modes: BodyMode) -> Action:
        """Leave full duplex to another exchange, for which this one will only decide; refuse gRPC."""
        if BodyMode.GRPC not in modes:
            return GO_DUPLEX
        self.state = State.FINISHED
        self._observer.failed(NO_GRPC.reason)
        return NO_GRPC

    def _go_on(self, event: Message) -> Action:
        return Continue(event.kind)

    def _watch(self, event: Event) -> Action:  # noqa: ARG002
        return IGNORE

    def _unexpected(self, event: Event) -> Action:
        if isinstance(event, Message) and event.modes and not _MODES_APART.isdisjoint(event.modes):
            return self._apart(*event.modes)
        kind = Kind.REQUEST_HEADERS if isinstance(event, RequestHeaders) else event.kind
        self._observer.failed(f"unexpected_{kind.name.lower()}")
        return Continue(kind)

    # The state table: what to do with each kind of message in each state.
    _moves: ClassVar[dict[tuple[State, Kind], Callable[[Exchange, Any], Action]]] = {
        (State.OPEN, Kind.REQUEST_HEADERS): _headers,
        (State.AWAIT_BODY, Kind.REQUEST_BODY): _body,
        (State.AWAIT_BODY, Kind.REQUEST_TRAILERS): _bodyless,
        (State.AWAIT_TOKEN, Kind.REQUEST_TRAILERS): _go_on,
        (State.AWAIT_TOKEN, Kind.RESPONSE_HEADERS): _go_on,
        (State.AWAIT_TOKEN, Kind.RESPONSE_BODY): _piece,
        (State.AWAIT_TOKEN, Kind.RESPONSE_TRAILERS): _let_go,
        **dict.fromkeys(((State.PASSING, kind) for kind in Kind if kind is not Kind.REQUEST_HEADERS), _go_on),
        (State.PASSING, Kind.RESPONSE_BODY): _let_go,
        **dict.fromkeys(((State.OBSERVING, kind) for kind in Kind), _watch),
    }
