"""Writes ProcessingResponses for the picker that can be broken."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc_filter
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.type import v3 as types
from envoy_data_plane.google.protobuf import Struct

from ext_proc.conformance.messages import DESTINATION, DROPPED, LB_NAMESPACE

LIMIT = 50_000
"""Bytes of a body that go into one answer."""

ADD, APPEND = 1, 0
OVERWRITE = 2


def setter(key: str, value: bytes, action: int = OVERWRITE) -> core.HeaderValueOption:
    """Set a header."""
    chosen = core.HeaderValueOptionHeaderAppendAction(action)
    return core.HeaderValueOption(header=core.HeaderValue(key=key, raw_value=value), append_action=chosen)


def answer(kind: str, common: ext_proc.CommonResponse | None = None, **more: Any) -> ext_proc.ProcessingResponse:
    """Answer a message of a kind."""
    part: Any
    if kind.endswith("headers"):
        part = ext_proc.HeadersResponse(response=common)
    elif kind.endswith("body"):
        part = ext_proc.BodyResponse(response=common)
    else:
        part = ext_proc.TrailersResponse(header_mutation=None if common is None else common.header_mutation)
    return ext_proc.ProcessingResponse(**{kind: part}, **more)


def picked(kind: str, address: str) -> ext_proc.ProcessingResponse:
    """Answer a message with a pick."""
    mutation = ext_proc.HeaderMutation(set_headers=[setter(DESTINATION, address.encode())])
    metadata = Struct.from_dict({LB_NAMESPACE: {DESTINATION: address}})
    return answer(kind, ext_proc.CommonResponse(header_mutation=mutation), dynamic_metadata=metadata)


def piece(kind: str, body: bytes, *, last: bool) -> ext_proc.ProcessingResponse:
    """Let a piece of a body in full duplex go on."""
    streamed = ext_proc.StreamedBodyResponse(body=body, end_of_stream=last)
    return answer(kind, ext_proc.CommonResponse(body_mutation=ext_proc.BodyMutation(streamed_response=streamed)))


def pieces(kind: str, body: bytes, *, last: bool, limit: int = LIMIT) -> list[ext_proc.ProcessingResponse]:
    """Let a body go on in pieces."""
    cuts = range(0, max(len(body), 1), limit)
    return [piece(kind, body[at : at + limit], last=last and at == cuts[-1]) for at in cuts]


def refused(status: int, body: bytes | None = None) -> ext_proc.ProcessingResponse:
    """Answer the client."""
    said = json.dumps({"error": {"message": "no endpoint"}}).encode() if body is None else body
    headers = [setter("content-type", b"application/json"), setter(DROPPED, b"rejected-no-endpoints")]
    immediate = ext_proc.ImmediateResponse(
        status=types.HttpStatus(code=types.StatusCode(status)),
        headers=ext_proc.HeaderMutation(set_headers=headers),
        body=said,
    )
    return ext_proc.ProcessingResponse(immediate_response=immediate)


def patience(seconds: float) -> ext_proc.ProcessingResponse:
    """Ask Envoy to wait."""
    return ext_proc.ProcessingResponse(override_message_timeout=dt.timedelta(seconds=seconds))


def override(request: int, response: int = 0) -> ext_proc_filter.ProcessingMode:
    """Ask Envoy to send bodies in other ways."""
    mode = ext_proc_filter.ProcessingModeBodySendMode
    return ext_proc_filter.ProcessingMode(request_body_mode=mode(request), response_body_mode=mode(response))
