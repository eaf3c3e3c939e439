"""ext_proc messages as Envoy sends them in the lean profile, and in full duplex."""

from __future__ import annotations

import json

from benchmarks.bodies import PATH
from benchmarks.stack import ANSWER
from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.names import DESTINATION, LB_NAMESPACE, SERVED
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest


def headers_message(body_bytes: int, *, duplex: bool = False) -> bytes:
    """Make the first message of an exchange."""
    request = ProcessingRequest()
    values = {
        ":authority": "gateway.example",
        ":path": PATH,
        ":method": "POST",
        ":scheme": "http",
        "user-agent": "benchmark/1",
        "accept": "application/json",
        "authorization": "Bearer not-a-secret",
        "content-type": "application/json",
        "content-length": str(body_bytes),
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-proto": "http",
        "x-request-id": "0b1f9f39-6c5c-4d0b-9a67-2f5b0a9f3c11",
    }
    headers = [HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    request.request_headers.headers.headers.extend(headers)
    mode = int(BodyMode.FULL_DUPLEX_STREAMED if duplex else BodyMode.BUFFERED_PARTIAL)
    request.protocol_config.request_body_mode = mode  # type: ignore[assignment]
    if duplex:
        request.protocol_config.response_body_mode = mode  # type: ignore[assignment]
    request.metadata_context.SetInParent()
    return request.SerializeToString()


def body_message(body: bytes) -> bytes:
    """Make the second message of an exchange."""
    request = ProcessingRequest()
    request.request_body.body = body
    request.request_body.end_of_stream = True
    request.metadata_context.SetInParent()
    return request.SerializeToString()


def duplex_request(body: bytes) -> list[bytes]:
    """Make the messages of a request in full duplex: the body comes in one piece, and its end behind it."""
    piece, end = ProcessingRequest(), ProcessingRequest()
    piece.request_body.body = body
    end.request_body.end_of_stream = True
    for request in (piece, end):
        request.metadata_context.SetInParent()
    return [headers_message(len(body), duplex=True), piece.SerializeToString(), end.SerializeToString()]


def duplex_answer(address: str) -> list[bytes]:
    """Make those of the answer of an endpoint."""
    body = json.dumps(ANSWER).encode()
    values = {":status": "200", "content-type": "application/json", "content-length": str(len(body)), "server": "envoy"}
    headers, piece, end = ProcessingRequest(), ProcessingRequest(), ProcessingRequest()
    headers.response_headers.headers.headers.extend(
        HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()
    )
    piece.response_body.body = body
    end.response_body.end_of_stream = True
    for request in (headers, piece, end):
        request.metadata_context.filter_metadata[LB_NAMESPACE].update({DESTINATION: address, SERVED: address})
    return [request.SerializeToString() for request in (headers, piece, end)]
