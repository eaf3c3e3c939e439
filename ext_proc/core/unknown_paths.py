"""What becomes of requests on paths that are not known: where models differ, one that they name is heeded all the same.

Engines and clients have more calls than anybody can list. Where one model is served any endpoint will do, so Envoy may
choose; where several are, its choice would be a guess, and without a default pool it has nothing to choose from.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ext_proc.core.exchange_messages import RequestHeaders
from ext_proc.core.model import Api, InferenceRequest, Operation
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.prompts import Route

_ANY: Final = Route(Operation.LOOKUP, Api.OPENAI, wants_body=False)
BY_MODEL: Final = Route(Operation.LOOKUP, Api.OPENAI, wants_body=True)
"""The route of a request whose body may name a model, though nobody knows what it asks for."""

_MAY_NAME_A_MODEL: Final = re.compile(
    r"\s*(?:$|multipart/form-data|application/x-www-form-urlencoded|[^;]*json)", re.IGNORECASE
)
"""Media types; curl calls everything a form."""


def route_unknown(event: RequestHeaders, picker: EndpointPicker) -> Route | None:
    """Return how to treat a request on a path that is not known; None leaves it to Envoy's own choice."""
    if picker.picks_without_model():
        return _ANY if event.anywhere else None
    if event.anywhere and event.subset is not None:
        return _ANY
    # A body of another type may be endless, such as a stream of gRPC, and must not be waited for.
    return BY_MODEL if _MAY_NAME_A_MODEL.match(event.head.content_type) else _ANY


def heeded(request: InferenceRequest, picker: EndpointPicker) -> InferenceRequest:
    """Forget a model that nobody serves: on a path that is not known it may mean anything."""
    return request if picker.known(request.model) else msgspec.structs.replace(request, model=None)
