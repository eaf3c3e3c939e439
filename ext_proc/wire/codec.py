"""ProcessingRequest bytes → event, action → ProcessingResponse bytes."""

from __future__ import annotations

import functools

import msgspec
from google.protobuf.struct_pb2 import Struct

from ext_proc.core.error_bodies import error_body
from ext_proc.core.exchange_messages import BodyMode, Continue, Event, Kind, Message, Refuse, RequestHeaders
from ext_proc.core.model import Decision
from ext_proc.core.names import (
    ASKER,
    DECISION_KEY,
    DESTINATION,
    DROPPED_HEADER,
    EXPLANATION_HEADER,
    EXPLANATION_KEY,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    PICKER_HEADERS,
    RANK,
    READ_HEADERS,
    REFUSED_KEY,
    REQUEST_ID,
    SERVED,
    SHOWN_KEY,
    UPGRADE_HEADERS,
)
from ext_proc.core.prompts import RequestHead
from ext_proc.core.wishes import NO_NAMES, HeaderNames
from ext_proc.wire._pb.core_pb2 import HeaderValue, HeaderValueOption
from ext_proc.wire._pb.ext_proc_pb2 import HeaderMutation, ProcessingRequest, ProcessingResponse
from ext_proc.wire.alike import alike
from ext_proc.wire.framing import STRING_VALUE, STRUCT_VALUE, entry_frames, framed, varint
from ext_proc.wire.subset import subset_hint

_CONTENT_ENCODING = "content-encoding"
"""May come in several lines, which together are one list."""

_WANTED = frozenset((*READ_HEADERS, *UPGRADE_HEADERS))
_LONGEST_REQUEST_ID = 256


def decode(message: bytes, names: HeaderNames = NO_NAMES) -> Event | None:
    """Read a ProcessingRequest; None for a kind of message that is not known here.

    Args:
        message: its bytes.
        names: which headers say whose a request is, and what is wished for it.

    Raises:
        google.protobuf.message.DecodeError: the bytes are no ProcessingRequest.
    """
    if not message.startswith(_HEADERS_FIELD) or len(message) > _LONGEST_KEPT:
        return _slice_body(message) or _decode(message, names)
    message, request_id = alike(message, names)
    event = _decode_kept(message, names)
    if not request_id or not isinstance(event, RequestHeaders):
        return event
    return msgspec.structs.replace(event, request_id=request_id)


_HEADERS_FIELD = b"\x12"
_LONGEST_KEPT = 1024


@functools.lru_cache(maxsize=1024)
def _decode_kept(message: bytes, names: HeaderNames) -> Event | None:
    return _decode(message, names)


def _decode(message: bytes, names: HeaderNames) -> Event | None:
    request = ProcessingRequest.FromString(message)
    name = request.WhichOneof("request")
    if name == "request_body":
        body = request.request_body
        return Message(Kind.REQUEST_BODY, body.body, body.end_of_stream, modes=_modes(request))
    if name == "request_headers":
        return _decode_headers(request, names)
    if name == "response_body":
        piece = request.response_body
        return Message(Kind.RESPONSE_BODY, piece.body, piece.end_of_stream, served_by(request), _modes(request))
    if name is None:
        return None
    ends = name == "response_headers" and request.response_headers.end_of_stream
    return Message(Kind[name.upper()], end_of_stream=ends, modes=_modes(request))


_BODY_FIELD = b"\x22"
_BYTES_FIELD = b"\x0a"
_FLAGS = {b"": False, b"\x10\x01": True}
"""What may follow the bytes of a body: `end_of_stream`, left out where it is false."""

_TAILS = frozenset({b"", b"\x42\x00"})
"""What may follow a body: nothing, or Envoy's empty `metadata_context`."""


def _slice_body(message: bytes) -> Message | None:
    """Cut the request body out of a message laid out as Envoy does it; None for every other message.

    Parsing copies the body twice, which costs more than all else that is done to the message.
    """
    if not message.startswith(_BODY_FIELD):
        return None
    size, inner = read_varint(message, 1)
    outer_end = inner + size
    if not message.startswith(_BYTES_FIELD, inner) or outer_end > len(message):
        return None
    length, start = read_varint(message, inner + 1)
    end = start + length
    flag = _FLAGS.get(message[end:outer_end]) if end <= outer_end else None
    if flag is None or message[outer_end:] not in _TAILS:
        return None
    return Message(Kind.REQUEST_BODY, message[start:end], flag)


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a length and the position behind it; a length that is cut off reaches beyond every message."""
    number = 0
    for shift, byte in enumerate(message[position : position + 5]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004  the highest bit says that more follows
            return number, position + shift + 1
    return len(message), len(message)


def _decode_headers(request: ProcessingRequest, names: HeaderNames) -> RequestHeaders:
    values: dict[str, str] = {}
    for header in request.request_headers.headers.headers:
        key = header.key if header.key.islower() else header.key.lower()  # Envoy's are; others may send them as written
        if key in _WANTED or key in names.every:
            value = header.raw_value.decode("utf-8", "replace") or header.value
            values[key] = f"{values[key]}, {value}" if key == _CONTENT_ENCODING and key in values else value
    get = values.get
    protocol = request.protocol_config
    method = get(":method", "")
    tenant, priority, wishes = names.read(values)
    return RequestHeaders(
        method=method,
        head=RequestHead.of(values),
        end_of_stream=request.request_headers.end_of_stream,
        request_mode=_mode(protocol.request_body_mode),
        response_mode=_mode(protocol.response_body_mode),
        observing=request.observability_mode,
        subset=subset_hint(request.metadata_context.filter_metadata) if request.HasField("metadata_context") else None,
        spoofed=any(name in values for name in PICKER_HEADERS),
        request_id=get(REQUEST_ID, "")[:_LONGEST_REQUEST_ID],
        asker=_asker(request) if request.attributes else "",
        upgrade=method == "CONNECT" or any(name in values for name in UPGRADE_HEADERS),
        tenant=tenant,
        priority=priority,
        wishes=wishes,
    )


_MODES = {int(mode): mode for mode in BodyMode}


def _mode(number: int) -> BodyMode:
    """Read a body mode; one that is not known is as unsupported as GRPC."""
    return _MODES.get(number, BodyMode.GRPC)


def _modes(request: ProcessingRequest) -> tuple[BodyMode, BodyMode] | None:
    """Read how bodies come, which the first message of a stream says."""
    if not request.HasField("protocol_config"):
        return None
    protocol = request.protocol_config
    return _mode(protocol.request_body_mode), _mode(protocol.response_body_mode)


def _asker(request: ProcessingRequest) -> str:
    """Read the address of a client that asks for an explanation; empty if none asks."""
    groups = (group.fields for group in request.attributes.values())
    return next((fields[ASKER].string_value for fields in groups if ASKER in fields), "")


def served_by(request: ProcessingRequest) -> str | None:
    """Read which endpoint Envoy tried last."""
    fields = request.metadata_context.filter_metadata
    return fields[LB_NAMESPACE].fields[SERVED].string_value or None if LB_NAMESPACE in fields else None


class Encoder:
    """Writes ProcessingResponse messages.

    The part that names endpoints repeats from request to request and is kept serialised; the decision's id is framed
    by hand behind it.

    Args:
        attempts: endpoints that a pick names; a shorter choice is repeated in order, so that Envoy's retries never
            reach its fallback policy, which knows nothing of models. 1 for data planes that take one address only.
        attempts_in_duplex: the same on streams in full duplex, whose data plane may be another; None if it is not.

    Attributes:
        in_duplex: writes the messages of streams in full duplex.
    """

    def __init__(self, attempts: int, attempts_in_duplex: int | None = None) -> None:
        self.in_duplex = self if attempts_in_duplex in {None, attempts} else Encoder(attempts_in_duplex or 1)
        self._attempts = attempts
        self._picked = functools.lru_cache(maxsize=4096)(_picked)

    def encode(self, action: Continue) -> bytes:
        """Write the answer to a message."""
        decision = action.decision
        if decision is None:
            if action.unsized:
                return _unsized()
            return _bare(action.kind, action.clean, action.skip_body)
        destination = decision.endpoints[0].address if self._attempts == 1 else self.destination(decision)
        answer, endpoints = self._picked(action.kind, destination, decision.rank, action.skip_body)
        metadata = endpoints + _decision_entry(decision, action)
        if action.body is not None:
            answer = _rewriting(answer, action.kind, action.body)
        return answer + _METADATA_TAG + varint(len(metadata)) + metadata

    def destination(self, decision: Decision) -> str:
        """Return the value of the destination header: addresses in the order Envoy is to try them."""
        addresses = [endpoint.address for endpoint in decision.endpoints]
        count = len(addresses)
        if count != self._attempts:
            addresses = [addresses[attempt % count] for attempt in range(self._attempts)]
        return ",".join(addresses)


def encode_refusal(action: Refuse) -> bytes:
    """Write the answer that takes the place of an engine's; the reason becomes Envoy's response code details."""
    refusal = action.refusal
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = refusal.status
    immediate.body = error_body(refusal, action.api)
    immediate.details = f"kvpicker_{refusal.reason}"
    immediate.headers.set_headers.append(_header("content-type", b"application/json"))
    if refusal.retry_after is not None:
        immediate.headers.set_headers.append(_header("retry-after", str(refusal.retry_after).encode()))
    if refusal.dropped is not None:
        immediate.headers.set_headers.append(_header(DROPPED_HEADER, refusal.dropped.encode()))
    if action.explanation:
        immediate.headers.set_headers.append(_header(EXPLANATION_HEADER, action.explanation.encode()))
    # Tells the local-reply rules of Envoy that this body has its shape already.
    response.dynamic_metadata.update({KVPICKER_NAMESPACE: {REFUSED_KEY: refusal.reason}})
    return response.SerializeToString()


def encode_patience(seconds: float) -> bytes:
    """Write the message that asks Envoy to wait so long for the answer that follows."""
    response = ProcessingResponse()
    response.override_message_timeout.FromNanoseconds(round(seconds * 1e9))
    return response.SerializeToString()


@functools.cache
def _bare(kind: Kind, clean: bool, skip_body: bool) -> bytes:
    response = ProcessingResponse()
    part = getattr(response, kind.name.lower())
    part.SetInParent()
    if clean and kind is not Kind.REQUEST_TRAILERS:  # a mutation there is one of trailers
        _mutation(response, kind).remove_headers.extend(PICKER_HEADERS)
    if skip_body:
        response.mode_override.SetInParent()
    return response.SerializeToString()


@functools.cache
def _unsized() -> bytes:
    """Return the answer to the headers of an answer whose length does not hold."""
    response = ProcessingResponse()
    response.response_headers.response.header_mutation.remove_headers.append("content-length")
    return response.SerializeToString()


def _picked(kind: Kind, destination: str, rank: int | None, skip_body: bool) -> tuple[bytes, bytes]:
    """Return the answer without its metadata, and the entry of that which names the endpoints."""
    response = ProcessingResponse()
    if kind is Kind.REQUEST_TRAILERS:
        response.request_trailers.SetInParent()  # a mutation here would set a trailer
    else:
        mutation = _mutation(response, kind)
        mutation.set_headers.append(_header(DESTINATION, destination.encode()))
        if rank is not None:
            mutation.set_headers.append(_header(RANK, str(rank).encode()))
        elif kind is Kind.REQUEST_HEADERS:  # with a body, a client's were removed before
            mutation.remove_headers.append(RANK)
    if skip_body:
        response.mode_override.SetInParent()
    endpoints = Struct()
    endpoints.update({LB_NAMESPACE: {DESTINATION: destination}})
    return response.SerializeToString(), endpoints.SerializeToString()


def _rewriting(answer: bytes, kind: Kind, body: bytes) -> bytes:
    """Add another body to an answer, and take away the length of the one that came: Envoy sends it in chunks then.

    In answer to the headers, as in full duplex, the body follows in pieces.
    """
    response = ProcessingResponse.FromString(answer)
    _mutation(response, kind).remove_headers.append("content-length")
    if kind is Kind.REQUEST_BODY:
        response.request_body.response.body_mutation.body = body
    return response.SerializeToString()


def _mutation(response: ProcessingResponse, kind: Kind) -> HeaderMutation:
    if kind is Kind.REQUEST_HEADERS:
        return response.request_headers.response.header_mutation
    return response.request_body.response.header_mutation


def _header(key: str, value: bytes) -> HeaderValueOption:
    overwrite = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return HeaderValueOption(header=HeaderValue(key=key, raw_value=value), append_action=overwrite)


def packed(decision: Decision) -> str:
    """Return the decision as one metadata string: id, endpoint, predicted and prompt tokens, reason."""
    endpoint, tokens = decision.endpoints[0].address, decision.request.prompt_tokens
    return f"{decision.id}|{endpoint}|{decision.hit_tokens}/{tokens}|{decision.reason}"


def decision_id(text: str) -> str:
    """Return the id in a packed decision."""
    return text.partition("|")[0]


_DECISION = entry_frames(DECISION_KEY, STRING_VALUE)
_SHOWN = entry_frames(SHOWN_KEY, STRING_VALUE)
_EXPLANATION = entry_frames(EXPLANATION_KEY, STRING_VALUE)
_NAMESPACE = entry_frames(KVPICKER_NAMESPACE, STRUCT_VALUE)
_METADATA_TAG = b"\x42"


def _decision_entry(decision: Decision, action: Continue) -> bytes:
    """Write the metadata entry of a decision by hand: a third of what building the message takes."""
    text = packed(decision).encode()
    if not action.shown and not action.explanation:  # as nearly always
        return _before_decision(len(text)) + text
    fields = framed(text, _DECISION)
    if action.shown:
        fields += framed(text, _SHOWN)
    if action.explanation:
        fields += framed(action.explanation.encode(), _EXPLANATION)
    return framed(fields, _NAMESPACE)


@functools.lru_cache(maxsize=1024)
def _before_decision(size: int) -> bytes:
    """Return what stands before a packed decision of so many bytes, where nothing comes with it."""
    return framed(framed(bytes(size), _DECISION), _NAMESPACE)[:-size]
