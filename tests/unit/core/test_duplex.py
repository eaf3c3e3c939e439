"""The duplex exchange as a state machine, walked at random, and the orders of messages that have a name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ext_proc.core.duplex import DuplexExchange, Side
from ext_proc.core.duplex_messages import (
    LONGEST_UNSEEN,
    MOST_UNSEEN,
    PIECE_BYTES,
    DuplexAction,
    DuplexEvent,
    Pass,
    ResponseHeaders,
)
from ext_proc.core.exchange_messages import BodyMode, Continue, GoDuplex, Kind, Message, Refuse, RequestHeaders
from ext_proc.core.model import Ending
from ext_proc.core.own_answers import ENGINE_TIMEOUT, ENGINE_UNREACHABLE, NO_ENGINE_READY
from ext_proc.core.prompts import RequestHead
from tests.unit.wire.picking import ADDRESSES, CHAT, CONFIG, Picking

FULL = BodyMode.FULL_DUPLEX_STREAMED
MODES = tuple(mode for mode in BodyMode if mode is not BodyMode.GRPC)
SSE = "text/event-stream"
UNKNOWN_MODEL = b'{"model":"acme/nothing","messages":[]}'
REQUESTS = (CHAT, b"", b"x", UNKNOWN_MODEL, CHAT[:-2] + b'],"stream":true}' + b" " * (2 * PIECE_BYTES + 5))
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
ANSWER = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 3 + USAGE + b" " * PIECE_BYTES
COLLECT = 2_000
CAPPED = """
pools:
  main:
    endpoints: ["10.0.0.11:8000"]
    models: [acme/chat-8b]
    caps: {requests: 1}
    queue: {max_bytes: 150000}
"""


def picking_with(**policy: Any) -> Picking:
    """Make a picker with another policy."""
    picking = Picking()
    picking._policy = msgspec.structs.replace(picking._policy, **policy)
    return picking


def begun(picking: Picking, **fields: Any) -> tuple[DuplexExchange, Sequence[DuplexAction]]:
    """Begin an exchange in full duplex both ways, unless the fields of the headers say otherwise."""
    head = RequestHead(path=fields.pop("path", "/v1/chat/completions"), content_type="application/json")
    given = {"method": "POST", "request_mode": FULL, "response_mode": FULL, **fields}
    headers = RequestHeaders(head=head, **given)
    exchange = picking.exchange()
    assert isinstance(exchange.receive(headers), GoDuplex)
    duplex = DuplexExchange(exchange)
    return duplex, duplex.begin(headers)


def taken(duplex: DuplexExchange, event: DuplexEvent) -> Sequence[DuplexAction]:
    """Take an event as a session does, by the short cut where there is one."""
    unseen = duplex.unseen
    if unseen is not None and len(unseen) < MOST_UNSEEN and isinstance(event, Message):
        middle = event.kind is Kind.RESPONSE_BODY and not event.end_of_stream
        if middle and 0 < len(event.body) <= LONGEST_UNSEEN:
            unseen.append(event.body)
            return (Pass(event.kind, event.body),)
    return duplex.receive(event)


def said(*actions: Sequence[DuplexAction]) -> bytes:
    """Join the pieces among actions."""
    return b"".join(bytes(action.body) for some in actions for action in some if isinstance(action, Pass))


class Way:
    """One direction of a walk: what is sent, what came out, and what must hold."""

    def __init__(self, body: bytes, kinds: tuple[Kind, Kind, Kind], mode: BodyMode) -> None:
        self.body, self.kinds, self.mode = body, kinds, mode
        self.sent = 0
        self.out = b""
        self.ended = self.out_ended = self.abandoned = False
        self.answered_headers = self.answered_trailers = 0

    def take(self, action: Pass | Continue) -> None:
        """Hold one action against the rules."""
        headers, body, trailers = self.kinds
        assert not self.out_ended, "something after the end"
        if isinstance(action, Pass):
            assert action.kind is body
            assert self.mode is FULL
            assert self.answered_headers or headers is Kind.RESPONSE_HEADERS
            assert len(action.body) <= PIECE_BYTES
            assert action.body or action.end_of_stream
            self.out += bytes(action.body)
            self.out_ended = action.end_of_stream
        elif action.kind is headers:
            self.answered_headers += 1
        elif action.kind is trailers:
            self.answered_trailers += 1
            self.out_ended = True
        assert self.answered_headers <= 1
        assert self.answered_trailers <= 1
        assert self.body.startswith(self.out)


class DuplexWalk(RuleBasedStateMachine):
    """Any order of messages that Envoy may send, any cuts of the bodies, any modes of which one is full duplex."""

    def __init__(self) -> None:
        super().__init__()
        self.over = True
        self.history: list[Kind] = []

    @initialize(
        modes=st.one_of(
            st.tuples(st.just(FULL), st.just(FULL)),
            st.tuples(st.just(FULL), st.sampled_from(MODES)),
            st.tuples(st.sampled_from(MODES), st.just(FULL)),
        ),
        path=st.sampled_from(("/v1/chat/completions", "/v1/models", "/nothing")),
        body=st.sampled_from(REQUESTS),
        end=st.booleans(),
        upgrade=st.booleans(),
    )
    def begin(self, modes: tuple[BodyMode, BodyMode], path: str, body: bytes, *, end: bool, upgrade: bool) -> None:
        """Send the headers."""
        self.picking = picking_with(collect_bytes=COLLECT)
        kinds = (Kind.REQUEST_HEADERS, Kind.REQUEST_BODY, Kind.REQUEST_TRAILERS)
        self.request = Way(b"" if end else body, kinds, modes[0])
        kinds = (Kind.RESPONSE_HEADERS, Kind.RESPONSE_BODY, Kind.RESPONSE_TRAILERS)
        self.response = Way(ANSWER, kinds, modes[1])
        self.over = False
        self.headers_end = end
        self.decisions = 0
        self.duplex, actions = begun(
            self.picking,
            request_mode=modes[0],
            response_mode=modes[1],
            path=path,
            end_of_stream=end,
            upgrade=upgrade,
        )
        self.request.ended = end
        self.check(actions)
        if end:
            assert self.over or self.request.answered_headers == 1
            self.request.out_ended = True

    def give(self, event: DuplexEvent) -> None:
        """Send one message."""
        before = len(self.history)
        self.check(taken(self.duplex, event))
        if not self.over and isinstance(event, Message):
            way = self.response if event.kind in self.response.kinds else self.request
            if way.mode is not FULL and not way.abandoned:
                assert self.history[before:] == [event.kind]

    def check(self, actions: Sequence[DuplexAction]) -> None:
        """Hold the answers against the rules."""
        for action in actions:
            assert not self.over
            if isinstance(action, Refuse):
                assert self.request.answered_headers == 0 or self.request.mode is not FULL
                self.over = True
                continue
            assert isinstance(action, Pass | Continue)
            self.history.append(action.kind)
            if isinstance(action, Continue):
                assert not action.finished
                assert not action.skip_body
                self.decisions += action.decision is not None
            way = self.response if action.kind in self.response.kinds else self.request
            way.take(action)

    @precondition(lambda self: not self.over and not self.request.ended and self.request.mode is not BodyMode.NONE)
    @rule(size=st.sampled_from((1, 7, 500, 2_500, 70_000)), end=st.sampled_from(("open", "eos", "empty", "trailers")))
    def request_piece(self, size: int, end: str) -> None:
        """Send more of the request's body, and in one of three ways its end."""
        self.send(self.request, size, end)

    @precondition(lambda self: not self.over and self.response.answered_headers and not self.response.ended)
    @rule(size=st.sampled_from((1, 48, 900, 70_000)), end=st.sampled_from(("open", "eos", "empty", "trailers")))
    def response_piece(self, size: int, end: str) -> None:
        """Send more of the answer."""
        if self.response.mode is not BodyMode.NONE:
            self.send(self.response, size, end)

    def send(self, way: Way, size: int, end: str) -> None:
        """Send a piece."""
        _, body, trailers = way.kinds
        if way.mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
            size = len(way.body)
        piece = way.body[way.sent : way.sent + size]
        way.sent += len(piece)
        last = way.sent == len(way.body)
        buffered = way.mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
        eos = last and (end == "eos" or (buffered and end != "trailers"))
        way.ended = eos
        if piece or eos:
            self.give(Message(body, piece, eos))
        if not last or eos or self.over or end == "open":
            return
        way.ended = True
        self.give(Message(trailers) if end == "trailers" else Message(body, b"", end_of_stream=True))

    @precondition(lambda self: not self.over and self.request.ended and self.request.mode is FULL)
    @rule(again=st.binary(max_size=9))
    def request_ends_again(self, again: bytes) -> None:
        """Send the end of the request twice, as some versions of Envoy do."""
        assert self.duplex.receive(Message(Kind.REQUEST_BODY, again, end_of_stream=True)) == ()

    @precondition(lambda self: not self.over and self.request.mode is FULL)
    @rule()
    def time_passes(self) -> None:
        """Let the deadline of the body come."""
        if self.duplex.patience() is not None:
            self.picking.now += 60
            assert self.duplex.patience() == 0.0
        self.check(self.duplex.hurry())
        assert self.over or self.request.answered_headers == 1 or self.request.abandoned

    @precondition(lambda self: not self.over and not self.response.answered_headers)
    @rule(status=st.sampled_from((200, 404, 503)), end=st.booleans(), kind=st.sampled_from((SSE, "application/json")))
    def response_headers(self, status: int, kind: str, *, end: bool) -> None:
        """Let the engine answer, or Envoy in its place, before the request was sent on."""
        self.request.abandoned = self.request.abandoned or not self.request.answered_headers
        self.response.ended = end
        self.give(ResponseHeaders(status=status, content_type=kind, end_of_stream=end, served=ADDRESSES[1]))
        if end:
            self.response.out_ended = True

    @precondition(lambda self: not self.over)
    @rule(delivered=st.booleans())
    def close(self, *, delivered: bool) -> None:
        """End the stream at any moment."""
        self.duplex.close(delivered=delivered)
        self.over = True
        unseen = self.response.mode is BodyMode.NONE
        assert self.picking.in_flight() == 0 or (unseen and (delivered or self.response.answered_headers))
        if not unseen or not self.decisions:
            assert len(self.picking.core.ledger) == 0
        assert self.duplex.receive(Message(Kind.REQUEST_BODY, b"late", end_of_stream=True)) == ()

    @precondition(lambda self: self.over)
    @rule()
    def next_exchange(self) -> None:
        """Go on with a fresh exchange."""
        self.begin((FULL, FULL), "/v1/chat/completions", CHAT, end=False, upgrade=False)

    @invariant()
    def everything_goes_on(self) -> None:
        """What was sent comes out at once, but for a body that waits for its pick; the end comes out with it."""
        if self.over:
            return
        for way in (self.request, self.response):
            if way.mode is FULL and not way.abandoned and (way.answered_headers or way.sent):
                if way is self.request and not way.answered_headers:
                    assert self.duplex.request is Side.COLLECTING
                    assert way.sent <= COLLECT
                    assert not way.ended
                    continue
                assert way.out == way.body[: way.sent]
                assert way.out_ended == way.ended

    @invariant()
    def decides_and_settles_once(self) -> None:
        """One request is decided once and settled at most once."""
        if hasattr(self, "picking"):
            notes = self.picking.notes
            assert len(notes.all("finished")) <= len(notes.all("decided"))
            assert notes.all("failed") == []


TestDuplexWalk = DuplexWalk.TestCase
TestDuplexWalk.settings = settings(max_examples=60, stateful_step_count=10, deadline=None)


def decision_of(actions: Sequence[DuplexAction]) -> Any:
    """Return the decision on the answer to the headers."""
    first = actions[0]
    assert isinstance(first, Continue)
    assert first.kind is Kind.REQUEST_HEADERS
    return first.decision


def body(piece: bytes, *, end: bool = False) -> Message:
    """Make a piece of a request."""
    return Message(Kind.REQUEST_BODY, piece, end)


def test_a_body_is_held_back_until_it_is_whole() -> None:
    """Then come the headers with the pick, the body and its end."""
    duplex, actions = begun(picking_with())
    assert actions == ()
    assert duplex.receive(body(CHAT[:100])) == ()
    actions = duplex.receive(body(CHAT[100:], end=True))
    assert decision_of(actions).chosen.address in ADDRESSES
    assert actions[1:] == (Pass(Kind.REQUEST_BODY, CHAT, end_of_stream=True),)


def test_the_end_that_comes_twice_is_ignored() -> None:
    """One pick, one lease, and the body goes on once (G01)."""
    picking = picking_with()
    duplex, _ = begun(picking)
    large, rest = b" " * 1_048_576, CHAT + b" " * 300_000
    actions = [duplex.receive(body(large)), duplex.receive(body(rest, end=True)), duplex.receive(body(rest, end=True))]
    assert said(*actions) == large + rest
    assert actions[2] == ()
    assert picking.in_flight() == 1


def test_trailers_end_a_body() -> None:
    """The pick is made at the trailers; headers, body and trailers are answered in this order (G02)."""
    duplex, _ = begun(picking_with())
    assert duplex.receive(body(CHAT)) == ()
    actions = duplex.receive(Message(Kind.REQUEST_TRAILERS))
    assert decision_of(actions) is not None
    assert actions[1:] == (Pass(Kind.REQUEST_BODY, CHAT), Continue(Kind.REQUEST_TRAILERS))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health"])
def test_headers_that_are_all_are_answered_at_once(path: str) -> None:
    """A GET or an empty POST gets a pick that honours the subset (G03)."""
    _, actions = begun(picking_with(), path=path, end_of_stream=True, subset={ADDRESSES[2]})
    assert decision_of(actions).chosen.address == ADDRESSES[2]
    assert len(actions) == 1


@pytest.mark.parametrize("fields", [{"upgrade": True}, {"method": "CONNECT", "path": ""}], ids=["upgrade", "connect"])
def test_upgrades_are_answered_at_once(fields: dict[str, Any]) -> None:
    """What follows is no body that could be understood, and goes on as it comes."""
    duplex, actions = begun(picking_with(), **fields)
    assert decision_of(actions) is not None
    assert duplex.receive(body(b"\x81\x05hello")) == (Pass(Kind.REQUEST_BODY, b"\x81\x05hello"),)


def test_what_is_longer_than_the_cap_is_placed_by_its_beginning() -> None:
    """No more than the cap and one piece is held; the rest goes on piece by piece."""
    picking = picking_with(collect_bytes=4_000)
    duplex, _ = begun(picking)
    start = CHAT[:-3] + b" " * 3_500
    actions = duplex.receive(body(start))
    assert decision_of(actions).request.truncated
    assert said(actions) == start
    assert duplex.receive(body(b"rest")) == (Pass(Kind.REQUEST_BODY, b"rest"),)
    assert duplex.receive(body(b"", end=True)) == (Pass(Kind.REQUEST_BODY, b"", end_of_stream=True),)


@pytest.mark.parametrize("came", [b"", CHAT[:-20]], ids=["nothing", "a beginning"])
def test_what_is_late_is_placed_by_what_came(came: bytes) -> None:
    """After the deadline what is there decides; before it, the time that is left is known."""
    picking = picking_with(collect_s=5.0)
    duplex, _ = begun(picking)
    picking.now += 2
    duplex.receive(body(came))
    assert duplex.patience() == pytest.approx(3.0)
    actions = duplex.hurry()
    assert decision_of(actions) is not None
    assert said(actions) == came
    assert duplex.patience() is None
    assert duplex.hurry() == ()


def test_a_refusal_takes_the_place_of_everything() -> None:
    """Nothing of the body goes on."""
    picking = picking_with()
    duplex, _ = begun(picking)
    (refusal,) = duplex.receive(body(UNKNOWN_MODEL, end=True))
    assert isinstance(refusal, Refuse)
    assert refusal.refusal.status == 404
    assert duplex.receive(Message(Kind.RESPONSE_BODY, b"x")) == ()


def test_a_fault_of_ours_costs_the_pick_and_not_the_body() -> None:
    """The request goes on to Envoy's own choice, whole."""
    picking = picking_with()
    picking.core.picker._index = None  # type: ignore[assignment]
    duplex, _ = begun(picking)
    actions = duplex.receive(body(CHAT, end=True))
    assert decision_of(actions) is None
    assert said(actions) == CHAT
    assert picking.notes.all("failed") == ["internal"]


def test_a_fault_of_ours_lets_no_client_choose() -> None:
    """Its headers of pickers are taken away in that case too, which in full duplex nobody did before (H01)."""
    for data in (CHAT, b""):
        picking = picking_with()
        picking.core.picker._filters = None  # type: ignore[assignment]
        duplex, _ = begun(picking, spoofed=True)
        first, *_ = duplex.receive(body(data, end=True) if data else Message(Kind.REQUEST_TRAILERS))
        assert first == Continue(Kind.REQUEST_HEADERS, clean=True)
        assert picking.notes.all("failed") == ["internal"]


def test_who_sends_on_has_the_pick_though_the_last_answer_is_lost() -> None:
    """A client that leaves in the middle of a streamed upload: the request ends then, and not by expiry."""
    picking = picking_with()
    duplex, (picked,) = begun(picking, request_mode=BodyMode.STREAMED)
    assert decision_of((picked,)) is not None
    assert len(duplex.receive(body(CHAT[:9]))) == 1
    duplex.close(delivered=False)
    assert [outcome.ending for outcome in picking.notes.all("finished")] == [Ending.CLIENT_GONE]
    assert len(picking.core.ledger) == 0


def test_an_answer_before_ours_ends_the_request() -> None:
    """Envoy answered by itself; what was collected is dropped, and nothing is said of the request any more."""
    duplex, _ = begun(picking_with())
    duplex.receive(body(CHAT[:100]))
    assert duplex.receive(ResponseHeaders(status=408)) == (Continue(Kind.RESPONSE_HEADERS),)
    assert duplex.receive(body(CHAT[100:], end=True)) == ()
    assert duplex.hurry() == ()


def test_streams_that_do_not_begin_with_headers_pass() -> None:
    """Where the headers of the request are not sent there is nothing to decide; bodies go on."""
    exchange = picking_with().exchange()
    first = Message(Kind.RESPONSE_HEADERS, modes=(BodyMode.NONE, FULL))
    assert isinstance(exchange.receive(first), GoDuplex)
    duplex = DuplexExchange(exchange)
    assert duplex.begin(first) == (Continue(Kind.RESPONSE_HEADERS),)
    assert duplex.receive(Message(Kind.RESPONSE_BODY, b"x")) == (Pass(Kind.RESPONSE_BODY, b"x"),)
    exchange = picking_with().exchange()
    first = Message(Kind.REQUEST_BODY, b"x", modes=(FULL, BodyMode.NONE))
    assert isinstance(exchange.receive(first), GoDuplex)
    duplex = DuplexExchange(exchange)
    assert duplex.begin(first) == (Pass(Kind.REQUEST_BODY, b"x"),)


def answered(picking: Picking, *pieces: bytes, end: bool = True, **headers: Any) -> DuplexExchange:
    """Let a request for a stream be decided and answered."""
    duplex, _ = begun(picking)
    duplex.receive(body(CHAT[:-1] + b',"stream":true}', end=True))
    picking.now += 0.5
    duplex.receive(ResponseHeaders(**{"status": 200, "content_type": SSE, "forwarded": True, **headers}))
    for number, piece in enumerate(pieces, 1):
        picking.now += 0.25
        taken(duplex, Message(Kind.RESPONSE_BODY, piece, end and number == len(pieces)))
    return duplex


def test_the_outcome_is_seen_on_the_stream() -> None:
    """Status, times, tokens and the end of an answer settle its decision, without any access log."""
    picking = picking_with()
    answered(picking, b'data: {"choices":[]}\n\n', USAGE, b"")
    (outcome,) = picking.notes.all("finished")
    assert (outcome.ending, outcome.status) == (Ending.OK, 200)
    assert (outcome.first_byte, outcome.first_token, outcome.duration) == (0.5, 0.75, 1.25)
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (9, 4)
    assert picking.in_flight() == 0


def test_counts_are_found_behind_many_short_cuts() -> None:
    """However many pieces passed without a closer look."""
    picking = picking_with()
    answered(picking, *[b'data: {"choices":[{}]}\n\n'] * 500, USAGE[:30], USAGE[30:], b"")
    (outcome,) = picking.notes.all("finished")
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (9, 4)


def test_trailers_of_an_answer_end_it() -> None:
    """The outcome is known with them."""
    picking = picking_with()
    duplex = answered(picking, USAGE, end=False)
    assert picking.notes.all("finished") == []
    assert duplex.receive(Message(Kind.RESPONSE_TRAILERS)) == (Continue(Kind.RESPONSE_TRAILERS),)
    assert picking.notes.all("finished")[0].ending is Ending.OK


@pytest.mark.parametrize(
    ("status", "text", "ending"),
    [
        (500, b"boom", Ending.SERVER_ERROR),
        (429, b"busy", Ending.OVERLOADED),
        (404, b"no", Ending.CLIENT_ERROR),
        (503, b"upstream connect error or disconnect/reset before headers. reset reason: remote connection failure",
         Ending.CONNECT_FAILURE),
        (503, b"upstream connect error or disconnect/reset before headers. reset reason: connection termination",
         Ending.RESET),
        (504, b"upstream request timeout", Ending.TIMEOUT),
        (503, b"no healthy upstream", Ending.LOCAL),
    ],
)  # fmt: skip
def test_the_status_tells_how_it_ended(status: int, text: bytes, ending: Ending) -> None:
    """Errors of engines count against them (G22); what Envoy answers by itself is told from that by its words."""
    picking = picking_with()
    answered(picking, text, status=status, content_type="text/plain", forwarded=ending is Ending.SERVER_ERROR)
    assert [outcome.ending for outcome in picking.notes.all("finished")] == [ending]


@pytest.mark.parametrize("logged", [True, False])
def test_an_answer_of_envoys_in_other_words_is_left_to_the_log(logged: bool) -> None:
    """Errors that a gateway has reshaped hide why they were made; without a log their status counts."""
    picking = picking_with()
    if logged:
        picking.core.feedback.streams.log_heard(picking.now)
    answered(picking, b'{"error":{}}', status=503, content_type="application/json", forwarded=False)
    endings = [outcome.ending for outcome in picking.notes.all("finished")]
    assert endings == ([] if logged else [Ending.OVERLOADED])
    assert picking.in_flight() == (1 if logged else 0)


@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.parametrize(
    ("status", "message", "ending"),
    [
        (503, ENGINE_UNREACHABLE, Ending.RESET),
        (504, ENGINE_TIMEOUT, Ending.TIMEOUT),
        (503, NO_ENGINE_READY, Ending.LOCAL),
    ],
)
def test_an_answer_of_envoys_in_our_words_is_known_without_a_log(
    status: int, message: str, ending: Ending, logged: bool
) -> None:
    """A reset is no overload of the engine, even before the access log was heard; a log knows it better (F12)."""
    picking = picking_with()
    if logged:
        picking.core.feedback.streams.log_heard(picking.now)
    said = json.dumps({"error": {"code": "c", "message": message, "param": None}}).encode()
    answered(picking, said, status=status, content_type="application/json", forwarded=False)
    assert [outcome.ending for outcome in picking.notes.all("finished")] == ([] if logged else [ending])


def test_words_of_envoys_from_an_engine_are_the_engines() -> None:
    """Who quotes them in an answer of its own is judged by its status."""
    picking = picking_with()
    said = json.dumps({"error": {"message": ENGINE_TIMEOUT}}).encode()
    answered(picking, said, status=503, content_type="application/json", forwarded=True)
    assert [outcome.ending for outcome in picking.notes.all("finished")] == [Ending.OVERLOADED]


def test_an_error_within_a_stream_counts_as_one() -> None:
    """Though the status was good."""
    picking = picking_with()
    answered(picking, b'data: {"error": {"message": "out of memory"}}\n\n', b"")
    assert picking.notes.all("finished")[0].ending is Ending.STREAM_ERROR


def test_the_endpoint_that_served_is_the_one_that_learns() -> None:
    """After a retry the load leaves the chosen endpoint, which failed, and the prefix is known of the other (G21)."""
    picking = picking_with()
    duplex, _ = begun(picking)
    decision = decision_of(duplex.receive(body(CHAT, end=True)))
    chosen, other = decision.endpoints[0], decision.endpoints[1]
    duplex.receive(ResponseHeaders(status=200, end_of_stream=True, served=other.address, forwarded=True))
    (outcome,) = picking.notes.all("finished")
    assert (outcome.served, outcome.attempts) == (other.address, 2)
    assert picking.core.index.blocks(chosen.slot) == 0
    assert picking.core.index.blocks(other.slot) > 0
    assert picking.in_flight() == 0


def test_what_another_endpoint_serves_is_booked_there_from_its_headers_on() -> None:
    """Not only at the end of a long answer: in flight and prefix move, once, and end there (G21)."""
    picking = picking_with()
    duplex, _ = begun(picking)
    decision = decision_of(duplex.receive(body(CHAT, end=True)))
    chosen, other = decision.endpoints[0], decision.endpoints[1]
    in_flight = picking.core.ledger.load
    kind = "text/event-stream"
    duplex.receive(ResponseHeaders(status=200, content_type=kind, served=other.address, forwarded=True))
    assert (in_flight(chosen.slot).in_flight, in_flight(other.slot).in_flight) == (0, 1)
    assert picking.core.index.blocks(chosen.slot) == 0
    assert picking.core.index.blocks(other.slot) > 0
    duplex.receive(Message(Kind.RESPONSE_BODY, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    assert (in_flight(chosen.slot).in_flight, in_flight(other.slot).in_flight) == (0, 1)
    duplex.receive(Message(Kind.RESPONSE_BODY, b"data: [DONE]\n\n", end_of_stream=True))
    (outcome,) = picking.notes.all("finished")
    assert (outcome.ending, outcome.served, outcome.attempts) == (Ending.OK, other.address, 2)
    assert picking.in_flight() == 0
    reputations = picking.core.picker.knowledge.reputations.scores(decision.endpoints, picking.now)
    assert reputations[0] < reputations[1]
    assert picking.core.index.blocks(chosen.slot) == 0
    assert {load.tokens for load in picking.core.ledger._loads.values()} == {0}


@pytest.mark.parametrize(("plane", "blamed"), [("auto", 1), ("override-host", 2)])
def test_only_endpoints_that_were_named_are_blamed(plane: str, blamed: int) -> None:
    """Of those that Envoy was told: where that is the chosen one alone, the next has not been tried in vain."""
    picking = Picking(CONFIG + f"envoy: {{data_plane: {plane}}}\n")
    duplex, _ = begun(picking)
    decision = decision_of(duplex.receive(body(CHAT, end=True)))
    third = decision.endpoints[2]
    duplex.receive(ResponseHeaders(status=200, end_of_stream=True, served=third.address, forwarded=True))
    states = [picking.core.health.status(endpoint.slot, picking.now) for endpoint in decision.endpoints]
    assert [state.failure_ratio > 0 for state in states] == [True, blamed == 2, False]
    assert picking.notes.all("finished")[0].attempts == blamed + 1


def test_an_error_of_another_endpoint_moves_the_load_but_no_prefix() -> None:
    """Who refuses has computed nothing."""
    picking = picking_with()
    duplex, _ = begun(picking)
    decision = decision_of(duplex.receive(body(CHAT, end=True)))
    other = decision.endpoints[1]
    duplex.receive(ResponseHeaders(status=500, content_type="text/plain", served=other.address, forwarded=True))
    assert picking.core.ledger.load(other.slot).in_flight == 1
    assert picking.core.index.blocks(other.slot) == 0


@pytest.mark.parametrize("logged", [True, False])
def test_an_answer_without_an_end_blames_nobody_unless_a_log_knows(logged: bool) -> None:
    """Where an access log tells of such decisions its word is waited for; else the client is taken to have left."""
    picking = picking_with()
    if logged:
        picking.core.feedback.streams.log_heard(picking.now)
    duplex = answered(picking, USAGE, end=False)
    duplex.close(delivered=True)
    endings = [outcome.ending for outcome in picking.notes.all("finished")]
    assert endings == ([] if logged else [Ending.CLIENT_GONE])
    assert picking.in_flight() == (1 if logged else 0)


@pytest.mark.parametrize("logged", [True, False])
def test_a_client_that_leaves_behind_the_last_event_had_its_answer(logged: bool) -> None:
    """OpenAI's clients hang up at [DONE], before the stream's end has come; the log would tell of one that left."""
    picking = picking_with()
    if logged:
        picking.core.feedback.streams.log_heard(picking.now)
    duplex = answered(picking, USAGE, end=False)
    taken(duplex, Message(Kind.RESPONSE_BODY, b"data: [DONE]\n\n"))
    duplex.close(delivered=True)
    (outcome,) = picking.notes.all("finished")
    assert (outcome.ending, outcome.usage.prompt_tokens) == (Ending.OK, 9)
    assert picking.in_flight() == 0


def test_a_decision_that_never_reached_envoy_is_taken_back() -> None:
    """Its log entry will not come either."""
    picking = picking_with()
    duplex, _ = begun(picking)
    duplex.receive(body(CHAT, end=True))
    duplex.close(delivered=False)
    assert [outcome.ending for outcome in picking.notes.all("finished")] == [Ending.CLIENT_GONE]
    assert picking.in_flight() == 0


def test_a_stream_that_is_open_keeps_its_lease() -> None:
    """Silence of the access log about it means nothing, however long the answer takes, if pieces still pass."""
    picking = picking_with()
    duplex = answered(picking, USAGE, end=False)
    picking.core.ledger.renew("another", picking.now)
    for _ in range(20):
        picking.now += 100
        for _ in range(40):  # some of them take the short cut
            taken(duplex, Message(Kind.RESPONSE_BODY, b"data: {}\n\n"))
        assert picking.core.feedback.expire(picking.now) == 0
    assert picking.in_flight() == 1
    picking.now += 901
    assert picking.core.feedback.expire(picking.now) == 1


class Broken:
    """A scan that fails."""

    def feed(self, piece: bytes) -> None:
        """Fail."""
        raise RuntimeError

    def finish(self) -> None:
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize("way", ["its last piece", "many pieces", "trailers", "a cut"])
def test_a_fault_in_watching_costs_the_outcome_and_not_the_answer(way: str) -> None:
    """Every piece goes on, and the lease is left to expire."""
    picking = picking_with()
    duplex = answered(picking, b"data: {}\n\n", end=False)
    duplex._answer._scan = Broken()  # type: ignore[union-attr, assignment]
    last, count = way == "its last piece", MOST_UNSEEN + 2 if way == "many pieces" else 1
    pieces = [taken(duplex, Message(Kind.RESPONSE_BODY, b"data: 1\n\n", last)) for _ in range(count)]
    assert said(*pieces) == b"data: 1\n\n" * count
    if way == "trailers":
        assert duplex.receive(Message(Kind.RESPONSE_TRAILERS)) == (Continue(Kind.RESPONSE_TRAILERS),)
    duplex.close(delivered=True)
    assert picking.notes.all("failed") == ["internal"]
    assert picking.notes.all("finished") == []
    assert picking.core.feedback.expire(picking.now + 901) == 1


@pytest.mark.parametrize("trailers", [False, True])
def test_what_passed_unseen_at_last_counts(trailers: bool) -> None:
    """Whether the client left after it or trailers come."""
    picking = picking_with()
    duplex = answered(picking, b'data: {"choices":[{}]}\n\n', end=False)
    assert said(taken(duplex, Message(Kind.RESPONSE_BODY, USAGE))) == USAGE
    assert duplex.unseen == [USAGE]
    if trailers:
        duplex.receive(Message(Kind.RESPONSE_TRAILERS))
    duplex.close(delivered=True)
    (outcome,) = picking.notes.all("finished")
    assert (outcome.ending, outcome.usage.prompt_tokens) == (Ending.OK if trailers else Ending.CLIENT_GONE, 9)


def test_bodies_that_wait_here_count_against_the_bound() -> None:
    """An image is no part of the prompt that is looked at, and is held back all the same until the turn comes."""
    picking = Picking(CAPPED)
    image = CHAT[:-2] + b',{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    image += b"A" * 100_000 + b'"}}]}]}'
    for body, waiting in ((CHAT, 0), (image, 1)):
        duplex, _ = begun(picking)
        duplex.receive(Message(Kind.REQUEST_BODY, body, end_of_stream=True))
        fill = picking.core.admission.fills["main"]
        assert (fill.requests, fill.bytes > 100_000) == (waiting, waiting > 0)
    duplex, _ = begun(picking)
    (refused,) = duplex.receive(Message(Kind.REQUEST_BODY, image, end_of_stream=True))
    assert isinstance(refused, Refuse)
    assert picking.core.admission.fills["main"].requests == 1
