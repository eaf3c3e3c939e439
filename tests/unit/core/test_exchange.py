"""The exchange as a state machine, walked at random."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import (
    Abort,
    Action,
    BodyMode,
    Continue,
    GoDuplex,
    Ignore,
    Kind,
    Message,
    Refuse,
    RequestHeaders,
)
from ext_proc.core.exchange_states import State
from ext_proc.core.prompts import RequestHead
from tests.unit.wire.picking import CHAT, Picking

PATHS = ("/v1/chat/completions", "/v1/models", "/v1/embeddings", "/nothing")
STREAM = CHAT[:-1] + b',"stream":true}'
BODIES = (CHAT, STREAM, b"data: {}\n\n", b": ping\n\n", b"", b"{", b"[]", b'{"model":"unknown"}')


class ExchangeWalk(RuleBasedStateMachine):
    """Any order of messages, in any mode; the rules of the protocol must hold at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.picking = Picking()
        self.exchange: Exchange = self.picking.exchange()
        self.picks = 0
        self.over = False
        self.arrived = False
        self.shown = False

    @initialize(
        path=st.sampled_from(PATHS),
        end=st.booleans(),
        mode=st.sampled_from(BodyMode),
        response=st.sampled_from(BodyMode),
        observing=st.booleans(),
        begins_with_headers=st.booleans(),
    )
    def begin(
        self, path: str, mode: BodyMode, response: BodyMode, *, end: bool, observing: bool, begins_with_headers: bool
    ) -> None:
        """Send the headers, in most walks."""
        self.shown = response is BodyMode.STREAMED
        if begins_with_headers:
            head = RequestHead(path=path, content_type="application/json")
            self.check(
                Kind.REQUEST_HEADERS,
                self.exchange.receive(
                    RequestHeaders(
                        method="POST",
                        head=head,
                        end_of_stream=end,
                        request_mode=mode,
                        response_mode=response,
                        observing=observing,
                    )
                ),
            )

    @precondition(lambda self: not self.over)
    @rule(kind=st.sampled_from(list(Kind)[1:]), body=st.sampled_from(BODIES), end=st.booleans())
    def message(self, kind: Kind, body: bytes, *, end: bool) -> None:
        """Send any further message; it proves that the answers before it arrived."""
        self.arrived = self.picks > 0
        self.check(kind, self.exchange.receive(Message(kind, body, end)))

    @precondition(lambda self: not self.over)
    @rule(delivered=st.booleans())
    def close(self, *, delivered: bool) -> None:
        """End the stream at any moment."""
        self.exchange.close(delivered=delivered)
        self.over = True
        if not delivered:
            assert self.picking.in_flight() == (self.picks if self.arrived else 0)

    def check(self, kind: Kind, action: Action) -> None:
        """Hold an answer against the rules."""
        if isinstance(action, Continue):
            assert action.kind is kind
            self.picks += action.decision is not None
            self.over = self.over or action.finished
        elif isinstance(action, GoDuplex):
            assert self.exchange.state is State.OPEN
            self.over = True
        elif isinstance(action, Ignore):
            assert self.exchange.state is State.OBSERVING
        else:
            assert isinstance(action, Refuse | Abort)
            self.over = True

    @invariant()
    def first_tokens_are_of_shown_streams(self) -> None:
        """A first token is noted once, after the pick, where the data plane shows answers; then the stream is over."""
        noted = len(self.picking.notes.all("first_token"))
        assert noted <= (self.picks if self.shown else 0)
        assert self.over or not noted

    @invariant()
    def waits_for_tokens_of_shown_streams_only(self) -> None:
        """No other stream outlives its pick."""
        if self.exchange.state is State.AWAIT_TOKEN:
            assert self.shown
            assert self.picks == 1

    @precondition(lambda self: self.over)
    @rule()
    def next_exchange(self) -> None:
        """Go on with a fresh exchange of a fresh picker."""
        self.__init__()

    @invariant()
    def one_pick_at_most(self) -> None:
        """One request is decided and booked once."""
        assert self.picks <= 1
        assert 0 <= self.picking.in_flight() <= self.picks
        assert not any(reason == "internal" for reason in self.picking.notes.all("failed"))


TestExchangeWalk = ExchangeWalk.TestCase
TestExchangeWalk.settings = settings(max_examples=150, stateful_step_count=8, deadline=None)
