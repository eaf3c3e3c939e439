"""One ext_proc stream, bytes in and bytes out."""

from __future__ import annotations

import json

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.model import Decision, Unhashed
from ext_proc.core.names import DESTINATION, KVPICKER_NAMESPACE, LB_NAMESPACE, SUBSET, SUBSET_NAMESPACE
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import ADDRESSES, CHAT, TWO_POOLS, Notes, Picking, body_message, headers_message


def response(reply: Reply) -> ProcessingResponse:
    """Parse the answer of a reply."""
    assert reply.message is not None
    return ProcessingResponse.FromString(reply.message)


def destination(answer: ProcessingResponse) -> str | None:
    """Return the pick, after checking that header and metadata agree and that nothing else is set."""
    kind = answer.WhichOneof("response")
    assert kind in ("request_headers", "request_body")
    mutation = getattr(answer, kind).response.header_mutation
    values = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
    assert values.keys() <= {DESTINATION}
    lb = answer.dynamic_metadata.fields[LB_NAMESPACE].struct_value.fields
    assert (lb[DESTINATION].string_value or None) == values.get(DESTINATION)
    return values.get(DESTINATION)


def pick(session: ExtProcSession, body: bytes = CHAT, *, end: bool = True) -> str | None:
    """Send headers and body and return the pick."""
    assert response(session.receive(headers_message())).WhichOneof("response") == "request_headers"
    reply = session.receive(body_message(body, end=end))
    assert reply.finished
    return destination(response(reply))


def test_pick_rides_on_the_body_answer_and_finishes_the_stream(picking: Picking) -> None:
    """The answer to the body names three endpoints in header and metadata, and the stream is over."""
    picked = pick(picking.session())
    assert picked is not None
    assert sorted(picked.split(",")) == sorted(ADDRESSES)


def test_headers_are_continued_without_a_pick(picking: Picking) -> None:
    """While the body is awaited, the headers go on untouched."""
    reply = picking.session().receive(headers_message())
    assert not reply.finished
    assert response(reply) == ProcessingResponse(request_headers={})


def test_metadata_carries_the_decision(picking: Picking) -> None:
    """The access log can be joined to the decision by its id in our metadata namespace."""
    session = picking.session()
    session.receive(headers_message())
    answer = response(session.receive(body_message()))
    text = answer.dynamic_metadata.fields[KVPICKER_NAMESPACE].struct_value.fields["decision"].string_value
    (decision,) = picking.notes.all("decided")
    assert text.split("|")[:2] == [decision.id, decision.chosen.address]


@pytest.mark.parametrize("attempts", [1, 2, 5], ids="attempts={}".format)
def test_destination_lists_one_address_per_attempt(picking: Picking, attempts: int) -> None:
    """A data plane gets as many addresses as it may try, so its own fallback is never asked."""
    session = picking.session(attempts)
    session.receive(headers_message())
    picked = destination(response(session.receive(body_message())))
    assert picked is not None
    assert len(picked.split(",")) == attempts


def test_truncated_body_is_picked_once_by_its_beginning(picking: Picking) -> None:
    """A body over the limit comes once without its end (G05): it is picked by the part that was seen."""
    first = pick(picking.session(), CHAT)
    picking.now += 10
    second = pick(picking.session(), CHAT[:-20], end=False)
    assert first is not None
    assert second is not None
    assert picking.notes.all("decided")[1].hit_tokens > 0
    assert first.split(",")[0] == second.split(",")[0]


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED], ids=lambda mode: mode.name)
def test_without_a_body_the_headers_answer_carries_the_pick(picking: Picking, mode: BodyMode) -> None:
    """Where the body comes too late or not at all, load decides at the headers."""
    reply = picking.session().receive(headers_message(mode=mode))
    assert destination(response(reply)) is not None
    assert reply.finished is (mode is BodyMode.NONE)
    assert picking.notes.all("decided")[0].request.unhashed is Unhashed.BODY_NOT_SENT


def test_a_request_without_a_body_is_told_from_one_whose_body_is_not_sent(picking: Picking) -> None:
    """The former is an odd client's, the latter a setting of Envoy's."""
    picking.session().receive(headers_message(mode=BodyMode.NONE, end=True))
    assert picking.notes.all("decided")[0].request.unhashed is Unhashed.NO_BODY


def test_streamed_bodies_are_answered_piece_by_piece(picking: Picking) -> None:
    """Each piece of a streamed body gets exactly one bare answer of its kind."""
    session = picking.session()
    session.receive(headers_message(mode=BodyMode.STREAMED))
    for end in (False, False, True):
        reply = session.receive(body_message(b"{", end=end))
        assert response(reply) == ProcessingResponse(request_body={})


@pytest.mark.parametrize("other", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED], ids=lambda mode: mode.name)
@pytest.mark.parametrize("side", ["mode", "response_mode"])
def test_the_mode_that_is_not_served_ends_in_a_clear_error(picking: Picking, other: BodyMode, side: str) -> None:
    """GRPC messages end the stream with UNIMPLEMENTED, and are counted."""
    modes = {"mode": other, "response_mode": other, side: BodyMode.GRPC}
    reply = picking.session().receive(headers_message(**modes))
    assert (reply.message, reply.finished, reply.status) == (None, True, grpc.StatusCode.UNIMPLEMENTED)
    assert "GRPC" in reply.details
    assert picking.notes.all("failed") == ["mode_grpc"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/realtime?model=acme%2Fchat-8b")],
    ids=["empty post", "models", "realtime"],
)
def test_requests_without_a_body_are_answered_at_once(picking: Picking, method: str, path: str) -> None:
    """A request without a body gets its pick with the headers (A57, A66, G03)."""
    reply = picking.session().receive(headers_message(path, method=method, end=True))
    assert reply.finished
    assert destination(response(reply)) is not None


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "BREW"])
def test_unknown_paths_are_left_to_the_fallback(picking: Picking, method: str) -> None:
    """What is no inference request goes on without a pick and without its body being asked for."""
    reply = picking.session().receive(headers_message("/anything", method=method))
    answer = response(reply)
    assert reply.finished
    assert destination(answer) is None
    assert answer.HasField("mode_override")
    assert picking.in_flight() == 0


def test_spoofed_destination_is_overwritten_or_removed(picking: Picking) -> None:
    """A client's destination header reaches nobody (H01)."""
    spoofed = (DESTINATION, "127.0.0.1:9901")
    unknown = response(picking.session().receive(headers_message("/anything", spoofed)))
    assert DESTINATION in unknown.request_headers.response.header_mutation.remove_headers
    waiting = response(picking.session().receive(headers_message("/v1/chat/completions", spoofed)))
    assert DESTINATION in waiting.request_headers.response.header_mutation.remove_headers


def test_a_spoofed_destination_is_removed_by_a_fault_of_ours_too(picking: Picking) -> None:
    """Where Envoy is to choose by itself, it must not be the client who does (H01)."""
    picking.core.picker._filters = None  # type: ignore[assignment]
    message = headers_message("/v1/models", (DESTINATION, "127.0.0.1:9901"), method="GET", end=True)
    answer = response(picking.session().receive(message))
    assert destination(answer) is None
    assert DESTINATION in answer.request_headers.response.header_mutation.remove_headers


def test_spoofed_subset_header_has_no_effect(picking: Picking) -> None:
    """The subset hint is read from metadata only (H03)."""
    for _ in range(12):
        session = picking.session(1)
        session.receive(headers_message("/v1/chat/completions", (SUBSET, "10.0.0.13:8000")))
        session.receive(body_message())
    assert len({decision.chosen.address for decision in picking.notes.all("decided")}) > 1


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (["10.0.0.12:8000", 5], {"10.0.0.12:8000"}),
        ("10.0.0.12:8000, 10.0.0.13:8000", {"10.0.0.12:8000", "10.0.0.13:8000"}),
        ("10.0.0.13", {"10.0.0.13:8000"}),
        (None, set(ADDRESSES)),
    ],
    ids=["list", "string", "host", "null"],
)
def test_subset_hint_limits_the_pick(picking: Picking, hint: object, allowed: set[str]) -> None:
    """Only endpoints of the hint are named; null is no hint (G09)."""
    session = picking.session(len(allowed))
    session.receive(headers_message(metadata={SUBSET_NAMESPACE: {SUBSET: hint}}))
    picked = destination(response(session.receive(body_message())))
    assert picked is not None
    assert set(picked.split(",")) == allowed


@pytest.mark.parametrize("hint", [[], ["10.9.9.9:1"], 7, ["nonsense"]], ids=str)
def test_subset_without_an_eligible_member_is_refused_with_503(picking: Picking, hint: object) -> None:
    """An empty or foreign subset ends in 503, as the Endpoint Picker protocol asks."""
    session = picking.session()
    session.receive(headers_message(metadata={SUBSET_NAMESPACE: {SUBSET: hint}}))
    answer = response(session.receive(body_message()))
    assert answer.immediate_response.status.code == 503


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/chat/completions", b'{"model":"nope","messages":[]}', 404, "invalid_request_error"),
        ("/v1/messages", b'{"model":"nope","messages":[]}', 404, "not_found_error"),
        ("/v1/chat/completions", b"not json", 400, "invalid_request_error"),
        ("/v1/messages", b"{}", 400, "invalid_request_error"),
    ],
    ids=["unknown model", "unknown model, Anthropic", "no model", "no model, Anthropic"],
)
def test_refusals_have_the_shape_of_the_api(path: str, body: bytes, status: int, kind: str) -> None:
    """Every refusal is an error object of the called API, with its status and a reason in the details."""
    session = Picking(TWO_POOLS).session()
    session.receive(headers_message(path))
    reply = session.receive(body_message(body))
    immediate = response(reply).immediate_response
    error = json.loads(immediate.body)["error"]
    assert reply.finished
    assert (immediate.status.code, error["type"]) == (status, kind)
    assert immediate.details.startswith("kvpicker_model_")
    assert ("code" in error) is (path != "/v1/messages")


def test_unknown_message_is_ignored_and_the_rest_works(picking: Picking) -> None:
    """A message kind of a newer Envoy gets no answer and disturbs nothing (G18)."""
    session = picking.session()
    assert session.receive(b"\x6a\x02\x08\x01") == Reply()
    assert pick(session) is not None


def test_message_out_of_order_is_continued_and_counted(picking: Picking) -> None:
    """A body before the headers gets a bare answer of its kind."""
    reply = picking.session().receive(body_message())
    assert response(reply) == ProcessingResponse(request_body={})
    assert picking.notes.all("failed") == ["unexpected_request_body"]


def test_bytes_that_are_no_message_end_the_stream(picking: Picking) -> None:
    """Garbage is answered with INVALID_ARGUMENT."""
    assert picking.session().receive(b"\xff\xff\xff").status is grpc.StatusCode.INVALID_ARGUMENT


def test_observing_envoy_gets_no_answers(picking: Picking) -> None:
    """In observability mode nothing is answered and nothing is booked."""
    message = ProcessingRequest.FromString(headers_message())
    message.observability_mode = True
    session = picking.session()
    assert session.receive(message.SerializeToString()) == Reply()
    assert session.receive(body_message()) == Reply()
    assert picking.in_flight() == 0


@pytest.mark.parametrize("refuse", [False, True], ids=["open", "refuse"])
def test_fault_of_our_own_is_answered_as_configured(refuse: bool) -> None:
    """An internal error costs one pick, or is a 503 where the operator asked for that."""
    picking = Picking(refuse_on_failure=refuse)
    picking.core.picker.pick = None
    session = picking.session()
    session.receive(headers_message())
    answer = response(session.receive(body_message()))
    assert answer.WhichOneof("response") == ("immediate_response" if refuse else "request_body")
    assert picking.notes.all("failed") == ["internal"]


def test_a_fault_after_the_decision_takes_it_back() -> None:
    """A decision whose answer cannot be made is booked nowhere, and the request goes on without it."""

    class Broken(Notes):
        def decided(self, decision: Decision, seconds: float) -> None:
            """Fail like a fault of our own."""
            raise ZeroDivisionError

    picking = Picking()
    picking.notes = Broken()
    session = picking.session()
    session.receive(headers_message())
    answer = session.receive(body_message(CHAT))
    session.close(delivered=True)
    assert destination(response(answer)) is None
    assert (picking.in_flight(), len(picking.core.ledger)) == (0, 0)


def test_request_after_a_fault_goes_on_to_its_end() -> None:
    """After a fault of our own each further message still gets its bare answer."""
    picking = Picking()
    picking.core.picker.pick = None
    session = picking.session()
    session.receive(headers_message())
    session.receive(body_message())
    assert response(session.receive(body_message())) == ProcessingResponse(request_body={})


UUID = "0b6f0d5e-5d0c-4b36-8f2c-3d6d3f7c1a11"


@pytest.mark.parametrize("identity", [UUID, "mine", "x" * 300], ids=["uuid", "short", "long"])
def test_request_id_is_kept_with_the_decision(picking: Picking, identity: str) -> None:
    """A decision can be found by the gateway's request id while the request runs."""
    for name in (identity, UUID.replace("0", "1"), identity):
        session = picking.session()
        session.receive(headers_message("/v1/chat/completions", ("x-request-id", name)))
        session.receive(body_message())
    decisions = picking.notes.all("decided")
    assert [decision.request.request_id for decision in decisions][::2] == [identity[:256]] * 2
    assert decisions[1].request.request_id == UUID.replace("0", "1")


@pytest.mark.parametrize(
    "extra",
    ['"cache_salt": "%s"', '"previous_response_id": "%s"', '"lora_path": ["%s"]', '"model": "%s"'],
    ids=["salt", "previous response", "adapter", "model"],
)
def test_what_waits_for_an_outcome_is_small_whatever_was_sent(picking: Picking, extra: str) -> None:
    """Names of any length are kept as digests, so that open requests cannot fill the memory."""
    for filler in ("a", "b"):
        session = picking.session()
        session.receive(headers_message("/v1/responses"))
        body = '{"input":"hi",' + extra % (filler * 1_000_000) + "}"
        session.receive(body_message(body.encode()))
    requests = [lease.decision.request for lease in picking.core.ledger._leases.values()]
    assert all(len(repr(request)) < 2000 for request in requests)
    assert len({repr(request) for request in requests}) == len(requests)


@pytest.mark.parametrize("stage", range(3), ids=["before headers", "after headers", "after pick"])
def test_cancelled_streams_leave_nothing_behind(picking: Picking, stage: int) -> None:
    """A stream that ends before Envoy has the pick gives its lease back (G06)."""
    session = picking.session()
    for message in [headers_message(), body_message()][:stage]:
        session.receive(message)
    session.close(delivered=False)
    assert picking.in_flight() == 0
    assert len(picking.core.ledger) == 0


@given(st.binary(max_size=300))
def test_any_body_gets_exactly_one_answer(body: bytes) -> None:
    """Whatever a client sends, its body message is answered once and the stream is finished."""
    session = Picking().session()
    session.receive(headers_message())
    reply = session.receive(body_message(body))
    assert reply.finished
    assert response(reply).WhichOneof("response") in ("request_body", "immediate_response")
