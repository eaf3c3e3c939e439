"""A model that the gateway named in place of the client's is not what the client reads in its answer."""

from __future__ import annotations

import pytest

from ext_proc.core.duplex import DuplexExchange
from ext_proc.core.duplex_messages import ResponseHeaders
from ext_proc.core.exchange_messages import Continue, Kind, Message
from ext_proc.core.wishes import Wishes
from tests.unit.core.test_duplex import SSE, begun, said, taken
from tests.unit.wire.picking import CHAT, Picking

ALIAS = CHAT.replace(b"acme/chat-8b", b"alias")
ANSWER = b'data: {"model":"acme/chat-8b","choices":[{"delta":{"content":"a"}}]}\n\n' * 40
EXPECTED = ANSWER.replace(b"acme/chat-8b", b"alias")


def asked(body: bytes = ALIAS) -> DuplexExchange:
    """Begin an exchange whose gateway names the model, up to the answer."""
    duplex, _ = begun(Picking(), wishes=Wishes(model="acme/chat-8b"))
    assert said(duplex.receive(Message(Kind.REQUEST_BODY, body, True))) == CHAT
    return duplex


def headers(kind: str = SSE, encoding: str = "", *, end: bool = False) -> ResponseHeaders:
    """Make the headers of an answer."""
    return ResponseHeaders(status=200, content_type=kind, content_encoding=encoding, end_of_stream=end)


@pytest.mark.parametrize("kind", [SSE, "application/json", "Application/Problem+JSON; charset=utf-8"])
@pytest.mark.parametrize("size", [1, 7, 61, 10_000])
def test_the_answer_names_what_the_client_asked_for(kind: str, size: int) -> None:
    """Whatever the cuts; the length of the answer is taken away, since it has another one now."""
    duplex = asked()
    assert list(duplex.receive(headers(kind))) == [Continue(Kind.RESPONSE_HEADERS, unsized=True)]
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    out = [taken(duplex, Message(Kind.RESPONSE_BODY, piece)) for piece in pieces[:-1]]
    out.append(taken(duplex, Message(Kind.RESPONSE_BODY, pieces[-1], True)))
    assert said(*out) == EXPECTED


def test_what_was_held_back_comes_before_trailers() -> None:
    """An answer that breaks off within a name loses nothing."""
    duplex = asked()
    duplex.receive(headers())
    assert said(taken(duplex, Message(Kind.RESPONSE_BODY, b'data: {"mod'))) == b"data: {"
    *rest, last = duplex.receive(Message(Kind.RESPONSE_TRAILERS))
    assert said(rest) == b'"mod'
    assert last == Continue(Kind.RESPONSE_TRAILERS)


@pytest.mark.parametrize("given", [headers("audio/wav"), headers(encoding="gzip"), headers(end=True)])
def test_what_cannot_be_read_passes_as_it_is(given: ResponseHeaders) -> None:
    """With its length."""
    duplex = asked()
    assert list(duplex.receive(given)) == [Continue(Kind.RESPONSE_HEADERS)]
    if not given.end_of_stream:
        assert said(taken(duplex, Message(Kind.RESPONSE_BODY, ANSWER, True))) == ANSWER


def test_without_its_headers_an_answer_passes_as_it_is() -> None:
    """Its length could not be taken away."""
    for end in (True, False):
        assert said(taken(asked(), Message(Kind.RESPONSE_BODY, ANSWER, end))) == ANSWER


def test_who_asked_for_that_model_or_none_gets_its_name() -> None:
    """Then nothing was put in another's place."""
    for body in (CHAT, CHAT.replace(b'"model":"acme/chat-8b",', b"")):
        duplex, _ = begun(Picking(), wishes=Wishes(model="acme/chat-8b"))
        duplex.receive(Message(Kind.REQUEST_BODY, body, True))
        assert list(duplex.receive(headers())) == [Continue(Kind.RESPONSE_HEADERS)]
        assert said(taken(duplex, Message(Kind.RESPONSE_BODY, ANSWER, True))) == ANSWER
