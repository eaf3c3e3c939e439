"""What goes into an exchange and what comes out: events of an ext_proc stream, and the actions that answer them."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Collection
from typing import TypeAlias

import msgspec

from ext_proc.core.errors import Refusal
from ext_proc.core.model import Api, Decision
from ext_proc.core.prompts import RequestHead
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.core.turn import Turn
from ext_proc.core.wishes import Wishes


class Kind(enum.IntEnum):
    """Kinds of messages, numbered as the field of ProcessingRequest."""

    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


class BodyMode(enum.IntEnum):
    """Envoy's ways to send a body, numbered as ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class RequestHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The beginning of an exchange.

    Attributes:
        method: HTTP method.
        head: what of the headers helps to read the body.
        end_of_stream: True if no body follows.
        request_mode: how the request body will come.
        response_mode: how the response body would come.
        observing: True if Envoy takes no answers.
        subset: the only addresses that may be chosen; None allows all.
        spoofed: True if the client sent a header that only a picker may set.
        request_id: the gateway's name for the request; empty where it is not forwarded.
        asker: address of the client, as the gateway sees it, if it asks for an explanation; else empty.
        upgrade: True if the client wants to speak another protocol, so that no body is to be waited for.
        anywhere: True if a path that is not known must be given an endpoint too, where any will do.
        tenant: on whose behalf the request is sent, as the gateway says; empty if it says nothing.
        priority: its priority, as the gateway writes it; empty the same.
        wishes: what else the gateway says of it; None if nothing.
    """

    method: str
    head: RequestHead
    end_of_stream: bool = False
    request_mode: BodyMode = BodyMode.NONE
    response_mode: BodyMode = BodyMode.NONE
    observing: bool = False
    subset: Collection[str] | None = None
    spoofed: bool = False
    request_id: str = ""
    asker: str = ""
    upgrade: bool = False
    anywhere: bool = False
    tenant: str = ""
    priority: str = ""
    wishes: Wishes | None = None


class Message(msgspec.Struct, frozen=True, gc=False):
    """Any other message.

    Attributes:
        kind: what it is; the rest is for bodies only.
        body: the piece.
        end_of_stream: True for the last one.
        served: address of the endpoint that answers, if that is known.
        modes: how the bodies of request and response come, where a stream begins with this message; else None.
    """

    kind: Kind
    body: bytes = b""
    end_of_stream: bool = False
    served: str | None = None
    modes: tuple[BodyMode, BodyMode] | None = None


class Continue(msgspec.Struct, frozen=True, gc=False):
    """Answer a message and let the exchange go on, with the pick if there is one.

    Attributes:
        kind: the kind of the message that is answered.
        decision: the pick that the answer carries.
        finished: True to finish the stream after this answer.
        clean: True to take picker headers of the client away.
        skip_body: True to ask for no body.
        shown: True to show the client the decision.
        explanation: what the client is told of the decision; empty if it does not ask or may not know.
        body: what goes on in place of the body that came, or of what has come of it; None leaves it.
        asked: the model that the client asked for, where that body names another; empty if it does not.
        unsized: True to take the length of an answer away, whose body gets another one.
    """

    kind: Kind
    decision: Decision | None = None
    finished: bool = False
    clean: bool = False
    skip_body: bool = False
    shown: bool = False
    explanation: str = ""
    body: bytes | None = None
    asked: str = ""
    unsized: bool = False


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Answer the client in place of an engine; ends the stream. `explanation` as in `Continue`."""

    refusal: Refusal
    api: Api
    explanation: str = ""


class Abort(msgspec.Struct, frozen=True, gc=False):
    """End the stream with a gRPC error; Envoy then applies its failure mode."""

    reason: str
    message: str


class Ignore(msgspec.Struct, frozen=True, gc=False):
    """Send nothing."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Wait for the prompt's tokens, and then go on with `Exchange.resume`."""

    found: Awaitable[TokenPrompt | None]


class GoDuplex(msgspec.Struct, frozen=True, gc=False):
    """Go on as a `DuplexExchange`: a body of this stream is full duplex."""


class WaitForTurn(msgspec.Struct, frozen=True, gc=False):
    """Wait until the turn has its action, or its time is over (`Exchange.give_up`), and send that action.

    Attributes:
        turn: the request that waits.
        extension: seconds that Envoy must be asked to be patient, at once; 0 does not ask.
    """

    turn: Turn
    extension: float


Event: TypeAlias = RequestHeaders | Message
Action: TypeAlias = Continue | Refuse | Abort | Ignore | Wait | WaitForTurn | GoDuplex
