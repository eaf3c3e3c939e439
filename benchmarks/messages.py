"""ext_proc messages as Envoy sends them in the lean profile."""

from __future__ import annotations

from benchmarks.bodies import PATH
from ext_proc.core.exchange_messages import BodyMode
from ext_proc.wire._pb.core_pb2 import HeaderValue
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest


def headers_message(body_bytes: int) -> bytes:
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
    request.protocol_config.request_body_mode = int(BodyMode.BUFFERED_PARTIAL)  # type: ignore[assignment]
    request.metadata_context.SetInParent()
    return request.SerializeToString()


def body_message(body: bytes) -> bytes:
    """Make the second message of an exchange."""
    request = ProcessingRequest()
    request.request_body.body = body
    request.request_body.end_of_stream = True
    request.metadata_context.SetInParent()
    return request.SerializeToString()
