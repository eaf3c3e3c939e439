"""Understands the request of an exchange: by its headers, by its body, and by what the gateway wishes beside."""

from __future__ import annotations

import msgspec

from ext_proc.core.exchange_messages import Message, RequestHeaders
from ext_proc.core.model import InferenceRequest, Unhashed
from ext_proc.core.observer import Observer
from ext_proc.core.prompts import Route, parse, parse_head
from ext_proc.core.unknown_paths import BY_MODEL
from ext_proc.core.wishes import UnwritableBodyError, Wishes


class Rewritten(msgspec.Struct, frozen=True, gc=False):
    """A body with another model, and the one that the client asked for; empty if it named none."""

    body: bytes
    asked: str


def by_headers(route: Route, head: RequestHeaders) -> InferenceRequest:
    """Understand a request whose body is not seen, or that has none."""
    request = parse_head(route, head.head)
    return request if head.wishes is None else head.wishes.applied(request)


def unread(route: Route, head: RequestHeaders) -> InferenceRequest:
    """Understand a request whose body comes after the pick, or never."""
    request = by_headers(route, head)
    if request.unhashed is Unhashed.NO_BODY:
        request = msgspec.structs.replace(request, unhashed=Unhashed.BODY_NOT_SENT)
    return request


def by_body(
    route: Route, head: RequestHeaders, event: Message, inspect_bytes: int, observer: Observer
) -> tuple[InferenceRequest, Rewritten | None]:
    """Understand a request by its body, or what is seen of it.

    Returns:
        The request, and what is to go on in place of its body; None for its own, as nearly always.
    """
    request = parse(route, head.head, event.body, complete=event.end_of_stream, inspect_bytes=inspect_bytes)
    if head.wishes is None:
        return request, None
    rewritten = _rewritten(head.wishes, route, head, request.model, event, observer)
    return head.wishes.applied(request), rewritten


def _rewritten(
    wishes: Wishes, route: Route, head: RequestHeaders, model: str | None, event: Message, observer: Observer
) -> Rewritten | None:
    """Put the model that is wished for into the body; of one that is cut off only where we ourselves send its rest.

    No engine is to read of two models: a body whose model may stand behind the cut is left alone, and so is one that
    names none on a path that is not known, where it may mean anything.
    """
    may_lack = event.end_of_stream and route is not BY_MODEL
    try:
        made = wishes.rewritten(model, head.head.content_encoding, event.body, may_lack=may_lack)
        if made is None:
            return None
        if event.end_of_stream or head.anywhere:
            return Rewritten(made, model or "")
    except UnwritableBodyError:
        pass
    observer.failed("model_not_rewritten")
    return None
