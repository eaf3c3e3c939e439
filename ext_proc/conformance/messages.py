"""Makes the messages that Envoy sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode as _Body
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google.protobuf import Struct

from ext_proc.conformance.modes import Mode

Headers = Sequence[tuple[str, bytes]]
Metadata = Mapping[str, Mapping[str, Any]]

DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
DROPPED: Final = "x-llm-d-request-dropped-reason"
LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

UNKNOWN_ADDRESS: Final = "192.0.2.1:9"
"""An address of nobody (RFC 5737)."""

UNKNOWN: Final = b"\x6a\x02\x08\x07"
"""A field of ProcessingRequest that newer versions of Envoy have (13, a window update) and others do not know."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a client sends, as Envoy cuts it.

    Attributes:
        path: path of the request.
        method: its method.
        headers: what it has beside the pseudo-headers.
        pieces: the body; empty if the headers end the request.
        trailers: trailers that end the request, or None if the body does.
        subset: the value of the subset hint; None sends none, and `metadata` says the rest.
        metadata: the whole metadata, where a check needs a strange one.
        last: whether the last piece of the body says that it is the last.
    """

    path: str
    method: str = "POST"
    headers: Headers = ()
    pieces: tuple[bytes, ...] = ()
    trailers: Headers | None = None
    subset: Any = None
    metadata: Metadata | None = None
    last: bool = True

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
    """What an engine answers, as Envoy cuts it."""

    status: int = 200
    headers: Headers = (("content-type", b"application/json"),)
    pieces: tuple[bytes, ...] = ()
    trailers: Headers | None = None
    served: Any = None

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)


def request_headers(request: Request, mode: Mode) -> bytes:
    """Write the first message of a stream."""
    pseudo = (
        (":method", request.method.encode()),
        (":scheme", b"http"),
        (":authority", b"models.example"),
        (":path", request.path.encode()),
    )
    rest = (("x-forwarded-proto", b"http"), ("x-request-id", b"7b0e0f4e-3d5c-4b2e-9c55-1d2a8f1d9c10"))
    content = (("content-type", b"application/json"),) if request.pieces or request.method == "POST" else ()
    own = {name for name, _ in request.headers}
    headers = [pair for pair in (*pseudo, *content, *rest) if pair[0] not in own]
    metadata = request.metadata
    if metadata is None:
        metadata = {} if request.subset is None else {SUBSET_NAMESPACE: {SUBSET: request.subset}}
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(
            headers=_map((*headers, *request.headers)),
            end_of_stream=not request.pieces and request.trailers is None and request.last,
        ),
        metadata_context=_metadata(metadata),
    )
    return first(bytes(message), mode)


def first(message: bytes, mode: Mode) -> bytes:
    """Make any message the first of its stream, which says how bodies come: fields may follow one another."""
    modes = ext_proc.ProtocolConfiguration(
        request_body_mode=_Body(mode.request), response_body_mode=_Body(mode.response)
    )
    return message + bytes(ext_proc.ProcessingRequest(protocol_config=modes))


def request_body(piece: bytes, *, last: bool) -> bytes:
    """Write a piece of the request body."""
    return bytes(
        ext_proc.ProcessingRequest(
            request_body=ext_proc.HttpBody(body=piece, end_of_stream=last), metadata_context=core.Metadata()
        )
    )


def request_trailers(trailers: Headers) -> bytes:
    """Write the trailers of a request."""
    return bytes(
        ext_proc.ProcessingRequest(
            request_trailers=ext_proc.HttpTrailers(trailers=_map(trailers)), metadata_context=core.Metadata()
        )
    )


def response_headers(response: Response) -> bytes:
    """Write the headers of an answer, with the endpoint that served it."""
    served = {} if response.served is None else {LB_NAMESPACE: {SERVED: response.served}}
    headers = ((":status", str(response.status).encode()), *response.headers)
    return bytes(
        ext_proc.ProcessingRequest(
            response_headers=ext_proc.HttpHeaders(
                headers=_map(headers), end_of_stream=not response.pieces and response.trailers is None
            ),
            metadata_context=_metadata(served),
        )
    )


def response_body(piece: bytes, *, last: bool) -> bytes:
    """Write a piece of an answer's body."""
    return bytes(
        ext_proc.ProcessingRequest(
            response_body=ext_proc.HttpBody(body=piece, end_of_stream=last), metadata_context=core.Metadata()
        )
    )


def response_trailers(trailers: Headers) -> bytes:
    """Write the trailers of an answer."""
    return bytes(
        ext_proc.ProcessingRequest(
            response_trailers=ext_proc.HttpTrailers(trailers=_map(trailers)), metadata_context=core.Metadata()
        )
    )


def _map(headers: Headers) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=name, raw_value=value) for name, value in headers])


def _metadata(values: Metadata) -> core.Metadata:
    return core.Metadata(filter_metadata={name: Struct.from_dict(dict(part)) for name, part in values.items()})
