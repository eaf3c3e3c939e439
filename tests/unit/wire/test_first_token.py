"""The stream that lives until the first token, bytes in and bytes out."""

from __future__ import annotations

import pytest

from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.names import LB_NAMESPACE, SERVED
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import ADDRESSES, CHAT, Picking, body_message, headers_message

STREAM = CHAT[:-1] + b',"stream":true}'
TOKEN = b'data: {"choices":[{"delta":{"content":"Elbe"}}]}\n\n'
PING = b": ping\n\n"


def piece_message(piece: bytes = TOKEN, *, end: bool = False, served: str = "") -> bytes:
    """Write a response_body message; `served` is what Envoy's load balancer noted."""
    request = ProcessingRequest()
    request.response_body.body = piece
    request.response_body.end_of_stream = end
    if served:
        request.metadata_context.filter_metadata[LB_NAMESPACE].update({SERVED: served})
    return request.SerializeToString()


def kind_message(kind: str) -> bytes:
    """Write an empty message of a kind."""
    request = ProcessingRequest()
    getattr(request, kind).SetInParent()
    return request.SerializeToString()


def opened(
    picking: Picking,
    body: bytes = STREAM,
    mode: BodyMode = BodyMode.STREAMED,
    path: str = "/v1/chat/completions",
) -> tuple[ExtProcSession, Reply]:
    """Open a session, send a request and return the answer to its body."""
    session = picking.session()
    session.receive(headers_message(path, response_mode=mode))
    return session, session.receive(body_message(body))


def kind(reply: Reply) -> str | None:
    """Return the kind of a bare answer."""
    assert reply.message is not None
    answer = ProcessingResponse.FromString(reply.message)
    name = answer.WhichOneof("response")
    assert name is not None
    expected = ProcessingResponse()
    getattr(expected, name).SetInParent()
    assert answer == expected
    return name


def test_the_stream_lives_until_the_first_token(picking: Picking) -> None:
    """The pick is out with the body's answer; the first piece is answered barely and finishes the stream."""
    session, picked = opened(picking)
    assert (picked.finished, picked.optional) == (False, True)
    picking.now += 0.25
    reply = session.receive(piece_message())
    assert (kind(reply), reply.finished) == ("response_body", True)
    assert picking.notes.all("first_token") == [0.25]


@pytest.mark.parametrize(
    ("body", "mode", "path"),
    [
        (CHAT, BodyMode.STREAMED, "/v1/chat/completions"),
        (STREAM, BodyMode.NONE, "/v1/chat/completions"),
        (STREAM, BodyMode.BUFFERED, "/v1/chat/completions"),
        (b'{"model":"acme/chat-8b","stream":true,"input":"x"}', BodyMode.STREAMED, "/v1/embeddings"),
    ],
    ids=["whole answer", "not shown", "buffered", "nothing generated"],
)
def test_without_a_first_token_to_see_the_pick_is_the_end(
    picking: Picking, body: bytes, mode: BodyMode, path: str
) -> None:
    """Only what is asked for as a stream, and is shown, costs anything."""
    _, picked = opened(picking, body, mode, path)
    assert (picked.finished, picked.optional) == (True, False)


def test_openings_are_answered_and_the_wait_goes_on(picking: Picking) -> None:
    """Pings are answered one by one, and the time is that of the token behind them."""
    session, _ = opened(picking)
    for _ in range(3):
        picking.now += 1
        reply = session.receive(piece_message(PING))
        assert (kind(reply), reply.finished, reply.optional) == ("response_body", False, True)
    assert session.receive(piece_message()).finished
    assert picking.notes.all("first_token") == [3.0]


@pytest.mark.parametrize(
    ("piece", "end"),
    [(b'{"error":{}}', False), (b"", True), (PING, True), (b"Bad Gateway", True)],
    ids=["error", "empty", "pings only", "text"],
)
def test_an_answer_that_is_no_stream_ends_the_wait(picking: Picking, piece: bytes, *, end: bool) -> None:
    """Errors and local replies finish the stream and are no first token."""
    session, _ = opened(picking)
    reply = session.receive(piece_message(piece, end=end))
    assert (kind(reply), reply.finished) == ("response_body", True)
    assert picking.notes.all("first_token") == []


def test_headers_and_trailers_are_answered_if_they_come(picking: Picking) -> None:
    """A data plane that sends them gets one answer for each; trailers are the end."""
    session, _ = opened(picking)
    for name, finished in (("request_trailers", False), ("response_headers", False), ("response_trailers", True)):
        reply = session.receive(kind_message(name))
        assert (kind(reply), reply.finished) == (name, finished)
    assert picking.notes.all("failed") == []


def test_the_endpoint_that_answers_is_known(picking: Picking) -> None:
    """After a retry the token is that of the endpoint which served at last."""
    session, _ = opened(picking)
    session.receive(piece_message(served=ADDRESSES[2]))
    (lease,) = picking.core.ledger._leases.values()
    assert lease.served == ADDRESSES[2]


@pytest.mark.parametrize("pieces", [[], [PING], [TOKEN]], ids=["none", "ping", "token"])
@pytest.mark.parametrize("delivered", [True, False])
def test_a_pick_that_arrived_is_not_taken_back(picking: Picking, pieces: list[bytes], *, delivered: bool) -> None:
    """Once Envoy has sent anything after the pick, only the access log ends the lease, whatever became of answers."""
    session, _ = opened(picking)
    for piece in pieces:
        session.receive(piece_message(piece))
    session.close(delivered=delivered)
    assert len(picking.core.ledger) == (1 if delivered or pieces else 0)


@pytest.mark.parametrize("refuse", [False, True], ids=["open", "refuse"])
def test_a_fault_never_spoils_an_answer_that_has_begun(refuse: bool) -> None:
    """An internal error while a token is noted ends the stream in good order, refusing or not."""
    picking = Picking(refuse_on_failure=refuse)
    session, _ = opened(picking)
    picking.core.feedback.first_token = None
    reply = session.receive(piece_message())
    assert (kind(reply), reply.finished) == ("response_body", True)
    assert picking.notes.all("failed") == ["internal"]


def test_after_a_fault_the_answer_is_not_followed() -> None:
    """If picking failed, the first piece of the answer finishes the stream instead of each costing an answer."""
    picking = Picking()
    picking.core.picker.pick = None
    session, failed = opened(picking)
    assert not failed.finished
    reply = session.receive(piece_message())
    assert (kind(reply), reply.finished) == ("response_body", True)
