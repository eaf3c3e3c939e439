"""Streams of any messages, in any order and of any modes: answered by the rules, and without a fault of ours."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.names import LB_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import CHAT, Picking

KINDS = (
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
)
USUAL = (KINDS[:2], (*KINDS[:2], "response_headers", "response_body", "response_body"), KINDS, KINDS[:1], ())
NAMES = (":method", ":path", ":status", "Content-Type", "content-encoding", "x-request-id", "upgrade", "x-other", "")
VALUES = ("POST", "GET", "/v1/chat/completions", "/v1/messages", "/", "200", "500", "gzip", "websocket")
BODIES = (CHAT, CHAT[:70], b"", b"{", b"\xff" * 9, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
HINTS: st.SearchStrategy[Any] = st.sampled_from(
    [None, 7, True, "", "10.0.0.12", "10.0.0.12:8000, x", ["10.0.0.13:8000", 5, ["a"]], {"a": "b"}, "[fd00::1]:80"]
)
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.text(max_size=5), st.booleans()))


@st.composite
def messages(draw: st.DrawFn, kinds: tuple[str, ...] = (*KINDS, "")) -> bytes:
    """Write a message: one of some kinds, or of none."""
    kind = draw(st.sampled_from(kinds))
    request = ProcessingRequest()
    if kind:
        part: Any = getattr(request, kind)
        part.SetInParent()
        if kind.endswith("_headers"):
            given_headers = draw(HEADERS)
            if kind == "request_headers" and draw(st.integers(0, 3)):
                given_headers += [(":method", "POST", True), (":path", "/v1/chat/completions", True)]
            for name, value, is_raw in given_headers:
                header = part.headers.headers.add(key=name)
                header.raw_value, header.value = (value.encode(), "") if is_raw else (b"", value)
        if kind.endswith("_body"):
            part.body = draw(st.sampled_from(BODIES))
        if not kind.endswith("_trailers"):
            part.end_of_stream = draw(st.booleans())
    if kind == "request_headers" or draw(st.booleans()):
        request.protocol_config.request_body_mode = draw(st.sampled_from((0, 1, 2, 3, 4, 4, 5, 9)))
        request.protocol_config.response_body_mode = draw(st.sampled_from((0, 0, 1, 2, 4, 4, 5, 9)))
    if draw(st.booleans()):
        metadata = request.metadata_context.filter_metadata
        metadata[SUBSET_NAMESPACE].update({SUBSET: draw(HINTS)})
        metadata[LB_NAMESPACE].update({SERVED: draw(HINTS)})
    request.observability_mode = draw(st.integers(0, 9)) == 0
    unknown = draw(st.sampled_from((b"", b"", b"\x6a\x00", b"\xa2\x06\x01x")))
    return request.SerializeToString() + unknown


@st.composite
def stream(draw: st.DrawFn) -> list[bytes]:
    """Write the messages of a stream: the usual ones, of which some are missing, doubled or out of place."""
    usual = [draw(messages((kind,))) for kind in draw(st.sampled_from(USUAL))]
    for odd in draw(st.lists(messages(), max_size=2)):
        usual.insert(draw(st.integers(0, len(usual))), odd)
    return usual


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(stream(), st.booleans()), min_size=6, max_size=10))
def test_g18_any_messages_are_answered_by_the_rules(streams: list[tuple[list[bytes], bool]]) -> None:
    """Nothing is our fault, no answer is of a kind that was not sent, and only headers of ours are touched."""
    picking = Picking()
    for sent, delivered in streams:
        session, before = picking.session(), len(picking.notes.all("decided"))
        heard: set[str | None] = {"immediate_response"}
        for message in sent:
            heard.add(ProcessingRequest.FromString(message).WhichOneof("request"))
            answer = session.receive(message)
            reply = Reply(answer) if isinstance(answer, bytes) else answer
            assert isinstance(reply, Reply)
            for written in filter(None, (reply.message, *reply.more)):
                response = ProcessingResponse.FromString(written)
                assert response.WhichOneof("response") in heard
                assert all(name.startswith("x-") for name in touched(response))
            if reply.finished:
                break
        session.close(delivered=delivered)
        assert len(picking.notes.all("decided")) <= before + 1
    assert "internal" not in picking.notes.all("failed")
    assert 0 <= picking.in_flight() <= len(picking.notes.all("decided"))


def touched(answer: ProcessingResponse) -> set[str]:
    """Name the headers of a request that an answer sets or takes away."""
    names = set[str]()
    for kind in ("request_headers", "request_body"):
        if answer.WhichOneof("response") == kind:
            mutation = getattr(answer, kind).response.header_mutation
            names |= {option.header.key for option in mutation.set_headers} | set(mutation.remove_headers)
    return names
