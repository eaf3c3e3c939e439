"""One ext_proc stream in full duplex: bytes to event, duplex exchange, actions to bytes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence

import grpc

from ext_proc.core.duplex import DuplexExchange, Side
from ext_proc.core.duplex_messages import DuplexAction, DuplexEvent, Pass
from ext_proc.core.exchange_messages import Abort, Continue, Event, Refuse, Wait, WaitForTurn
from ext_proc.core.turn import Turn
from ext_proc.wire.codec import Encoder, encode_patience, encode_refusal
from ext_proc.wire.duplex_codec import RESPONSE_HEADERS, decode_duplex, encode_piece, slice_piece
from ext_proc.wire.transport import NOTHING, Answer, Later, Reply
from ext_proc.wire.turns import await_turn

_ANSWERS = (Pass, Continue)


class DuplexSession:
    """Answers the messages of a stream from the second on, and the first as an event.

    Attributes:
        exchange: what decides and watches.
    """

    __slots__ = ("_encoder", "exchange")

    def __init__(self, exchange: DuplexExchange, encoder: Encoder) -> None:
        self.exchange = exchange
        self._encoder = encoder

    def begin(self, event: Event) -> Reply | Awaitable[Reply]:
        """Answer the first message, or say that what comes of the body is answered in time."""
        actions = self.exchange.begin(event)
        if actions:
            return self._reply(actions)
        seconds = self.exchange.patience()
        return NOTHING if seconds is None else Reply(later=Later(seconds, self._hurry))

    def receive(self, message: bytes) -> Answer:
        """Answer one ProcessingRequest.

        Raises:
            google.protobuf.message.DecodeError: the bytes are none.
        """
        event: DuplexEvent | None = None if message.startswith(RESPONSE_HEADERS) else slice_piece(message)
        if event is None:
            event = decode_duplex(message)
            if event is None:
                return NOTHING
        exchange = self.exchange
        actions = exchange.receive(event)
        if not actions:
            return NOTHING
        if len(actions) == 1 and exchange.response is not Side.OPEN:
            # Once Envoy shows an answer, the pick has reached it for certain.
            action = actions[0]
            if isinstance(action, Pass):
                return encode_piece(action)
            if isinstance(action, Continue):
                return self._encoder.encode(action)
        return self._reply(actions)

    def close(self, *, delivered: bool) -> None:
        """End the exchange."""
        self.exchange.close(delivered=delivered)

    def _reply(self, actions: Sequence[DuplexAction]) -> Reply | Awaitable[Reply]:
        if not actions:
            return NOTHING
        first = actions[0]
        if not isinstance(first, _ANSWERS):
            return self._stand_alone(first)
        message, *more = [
            encode_piece(action) if isinstance(action, Pass) else self._encode(action) for action in actions
        ]
        return Reply(message, more=tuple(more))

    def _stand_alone(self, action: Wait | WaitForTurn | Refuse | Abort) -> Reply | Awaitable[Reply]:
        if isinstance(action, Wait):
            return self._resume(action)
        if isinstance(action, WaitForTurn):
            message = encode_patience(action.extension) if action.extension else None
            return Reply(message, then=functools.partial(self._await_turn, action.turn))
        if isinstance(action, Refuse):
            return Reply(encode_refusal(action), True)
        return Reply(None, True, grpc.StatusCode.UNIMPLEMENTED, action.message)

    def _hurry(self) -> Reply | Awaitable[Reply]:
        return self._reply(self.exchange.hurry())

    async def _resume(self, wait: Wait) -> Reply:
        reply = self._reply(self.exchange.resume(await wait.found))
        return reply if isinstance(reply, Reply) else await reply

    async def _await_turn(self, turn: Turn) -> Reply:
        await await_turn(turn, self.exchange.give_up)
        reply = self._reply(self.exchange.turned(turn.action))
        return reply if isinstance(reply, Reply) else await reply

    def _encode(self, action: DuplexAction) -> bytes:
        if isinstance(action, Continue):
            return self._encoder.encode(action)
        raise TypeError(f"{type(action).__name__} comes alone")
