"""The external processing service: one exchange per stream."""

from __future__ import annotations

import functools
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from ext_proc.core.duplex import DuplexExchange
from ext_proc.core.duplex_messages import MOST_UNSEEN
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import Abort, Action, Continue, GoDuplex, Ignore, Refuse, Wait, WaitForTurn
from ext_proc.core.exchange_states import State
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.core.observer import Observer
from ext_proc.core.turn import Turn
from ext_proc.wire.codec import Encoder, decode, encode_patience, encode_refusal
from ext_proc.wire.duplex import DuplexSession
from ext_proc.wire.passing import Passing
from ext_proc.wire.transport import NOTHING, Answer, Method, Reply
from ext_proc.wire.turns import await_turn


class ExtProcSession:
    """One ext_proc stream: bytes to event, exchange, action to bytes.

    Args:
        exchange: decides.
        encoder: writes its answers.
        observer: learns of messages that cannot be read.
        passing: answers pieces in the middle of an engine's answer, for all streams.
    """

    __slots__ = ("_duplex", "_encoder", "_exchange", "_observer", "_passing", "_unseen")

    def __init__(self, exchange: Exchange, encoder: Encoder, observer: Observer, passing: Passing) -> None:
        self._exchange = exchange
        self._encoder = encoder
        self._observer = observer
        self._passing = passing
        self._duplex: DuplexSession | None = None
        self._unseen: list[bytes] | None = None

    def receive(self, message: bytes) -> Answer:
        """Answer one ProcessingRequest; one that must wait, for tokens or for its turn, is answered after that."""
        unseen = self._unseen
        if unseen is not None and len(unseen) < MOST_UNSEEN:
            passed = self._passing.answer(message)
            if passed is not None:
                unseen.append(passed[0])
                return passed[1]
        duplex = self._duplex
        try:
            if duplex is None:
                return self._receive(message)
            answer = duplex.receive(message)
        except DecodeError as error:
            self._observer.failed("not_a_processing_request", error)
            return Reply(None, True, grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        self._unseen = duplex.exchange.unseen
        return answer

    def _receive(self, message: bytes) -> Answer:
        event = decode(message, self._exchange.names)
        if event is None:
            return NOTHING
        action = self._exchange.receive(event)
        if isinstance(action, GoDuplex):
            self._duplex = DuplexSession(DuplexExchange(self._exchange), self._encoder.in_duplex)
            return self._duplex.begin(event)
        if isinstance(action, Wait):
            return self._resume(action)
        return self._wait(action) if isinstance(action, WaitForTurn) else self._reply(action)

    async def _resume(self, wait: Wait) -> Reply:
        action = self._exchange.resume(await wait.found)
        return self._wait(action) if isinstance(action, WaitForTurn) else self._reply(action)

    def _wait(self, action: WaitForTurn) -> Reply:
        message = encode_patience(action.extension) if action.extension else None
        return Reply(message, then=functools.partial(self._await_turn, action.turn))

    async def _await_turn(self, turn: Turn) -> Reply:
        await await_turn(turn, self._exchange.give_up)
        return self._reply(turn.action)

    def _reply(self, action: Action) -> Reply:
        if isinstance(action, Continue):
            # Only the time is still waited for; without us Envoy passes the answer all the same.
            optional = self._exchange.state is State.AWAIT_TOKEN
            return Reply(self._encoder.encode(action), action.finished, optional=optional)
        if isinstance(action, Ignore):
            return NOTHING
        if isinstance(action, Refuse):
            return Reply(encode_refusal(action), True)
        if isinstance(action, Abort):
            return Reply(None, True, grpc.StatusCode.UNIMPLEMENTED, action.message)
        raise TypeError(f"no answer to {type(action).__name__}")

    def close(self, *, delivered: bool) -> Reply:
        """End the exchange."""
        (self._duplex or self._exchange).close(delivered=delivered)
        return NOTHING


def ext_proc_method(open_exchange: Callable[[], Exchange], encoder: Encoder, observer: Observer) -> Method:
    """Make the method `Process`; `open_exchange` begins an exchange for each stream."""
    passing = Passing()
    return Method(EXT_PROC_SERVICE, "Process", lambda: ExtProcSession(open_exchange(), encoder, observer, passing))
