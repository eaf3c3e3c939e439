"""What a gateway says of a request in headers of the Endpoint Picker protocol, and what comes of it."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as TypedResponse
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.exchange_messages import BodyMode, RequestHeaders
from ext_proc.core.model import Decision
from ext_proc.core.names import (
    FAIRNESS_ID,
    LB_NAMESPACE,
    LEGACY_NAMES,
    MODEL_REWRITE,
    OBJECTIVE,
    SUBSET,
    SUBSET_NAMESPACE,
    TPOT_TARGET,
    TTFT_TARGET,
)
from ext_proc.core.wishes import NO_NAMES, Wishes, names_of
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingResponse
from ext_proc.wire.codec import decode
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import ADDRESSES, CHAT, CONFIG, TWO_POOLS, Picking, body_message, headers_message
from tests.unit.wire.test_duplex_session import body_of

OBEYING = "gateway: {model_rewrite: true, targets: true}\n"
ALL = names_of(FAIRNESS_ID, OBJECTIVE, rewrite=True, targets=True)


def read(*headers: tuple[str, str], names: Any = ALL) -> RequestHeaders:
    """Read a message with headers."""
    event = decode(headers_message("/v1/chat/completions", *headers), names)
    assert isinstance(event, RequestHeaders)
    return event


def decided(config: str, *headers: tuple[str, str], mode: BodyMode = BodyMode.BUFFERED_PARTIAL) -> Decision:
    """Have one request decided."""
    picking = Picking(config)
    session = picking.session()
    session.receive(headers_message("/v1/chat/completions", *headers, mode=mode))
    if mode is not BodyMode.STREAMED:
        session.receive(body_message())
    (decision,) = picking.notes.all("decided")
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_each_header_is_read_by_both_of_its_names(legacy: bool) -> None:
    """Tenant, priority, model and both times, whichever name a gateway uses (I12)."""
    said = {FAIRNESS_ID: "team", OBJECTIVE: "urgent", MODEL_REWRITE: "m", TTFT_TARGET: "250", TPOT_TARGET: "12.5"}
    event = read(*((LEGACY_NAMES[name] if legacy else name, value) for name, value in said.items()))
    assert (event.tenant, event.priority) == ("team", "urgent")
    assert event.wishes is not None
    assert (event.wishes.model, event.wishes.ttft, event.wishes.tpot) == ("m", 0.25, 0.0125)


@pytest.mark.parametrize("order", [1, -1], ids=["new first", "legacy first"])
def test_the_new_name_goes_before_the_legacy_one(order: int) -> None:
    """Where both are sent with different values, whatever their order, for each of the headers (I12)."""
    new = {FAIRNESS_ID: "team", OBJECTIVE: "urgent", MODEL_REWRITE: "m", TTFT_TARGET: "250", TPOT_TARGET: "12.5"}
    old = dict.fromkeys((LEGACY_NAMES[name] for name in new), "1")
    event = read(*[*new.items(), *old.items()][::order])
    assert (event.tenant, event.priority) == ("team", "urgent")
    assert event.wishes == Wishes("m", 0.25, 0.0125)


def test_a_header_of_another_name_has_no_alias() -> None:
    """A tenant header of one's own is read by that name alone."""
    names = names_of("x-team")
    assert read(("x-team", "a"), names=names).tenant == "a"
    assert read((FAIRNESS_ID, "a"), names=names).tenant == ""


def test_nothing_is_read_unless_it_is_configured() -> None:
    """By default a client may write what it likes into these headers."""
    headers = [(name, "9") for pair in LEGACY_NAMES.items() for name in pair]
    event = read(*headers, names=NO_NAMES)
    assert (event.tenant, event.priority, event.wishes) == ("", "", None)
    assert names_of().every == frozenset()
    plain = decided(CONFIG, *headers)
    assert (plain.request.model, plain.request.ttft_target) == ("acme/chat-8b", None)


def test_the_model_of_the_gateway_goes_before_the_bodys() -> None:
    """The endpoint is one of its pool, though the body names a model of another."""
    decision = decided(TWO_POOLS + OBEYING, (MODEL_REWRITE, "acme/embed-1"))
    assert (decision.request.model, decision.chosen.address) == ("acme/embed-1", "10.0.0.17:8000")


def answers(*messages: bytes, headers: tuple[tuple[str, str], ...], mode: BodyMode) -> tuple[list[bytes], list[str]]:
    """Send headers and further messages, and return all answers, and what failed."""
    picking = Picking(TWO_POOLS + OBEYING)
    session = picking.session()
    made = []
    for message in (headers_message("/v1/chat/completions", *headers, mode=mode), *messages):
        reply = session.receive(message)
        assert isinstance(reply, Reply)
        made += [reply.message, *reply.more] if reply.message is not None else []
    return made, picking.notes.all("failed")


REWRITE = ((MODEL_REWRITE, "acme/embed-1"),)


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_the_body_names_the_model_of_the_gateway_then(mode: BodyMode) -> None:
    """One answer carries it, and takes the length of the old one away, which it may not have."""
    (_, answer), failed = answers(body_message(), headers=REWRITE, mode=mode)
    common = ProcessingResponse.FromString(answer).request_body.response
    assert common.body_mutation.body == CHAT.replace(b"acme/chat-8b", b"acme/embed-1")
    assert list(common.header_mutation.remove_headers) == ["content-length"]
    assert failed == []


def test_the_body_goes_on_in_pieces_in_full_duplex() -> None:
    """The length goes with the headers; nothing of the old body is sent."""
    cut = len(CHAT) // 2
    pieces = (body_message(CHAT[:cut], end=False), body_message(CHAT[cut:]))
    (first, *rest), _ = answers(*pieces, headers=REWRITE, mode=BodyMode.FULL_DUPLEX_STREAMED)
    mutation = ProcessingResponse.FromString(first).request_headers.response.header_mutation
    assert "content-length" in mutation.remove_headers
    assert b"".join(body_of(TypedResponse.parse(answer))[0] for answer in rest) == CHAT.replace(
        b"acme/chat-8b", b"acme/embed-1"
    )


def test_a_model_behind_what_is_held_back_stays_the_only_one() -> None:
    """A body that is sent on before its model has come is left alone, and counted: no engine reads of two models."""
    body = b'{"messages":[{"role":"user","content":"' + b"a" * 4_000 + b'"}],"model":"acme/chat-8b"}'
    cut = len(body) - 40
    picking = Picking(f"prompts: {{collect_bytes: 1024}}{TWO_POOLS}{OBEYING}")
    session = picking.session()
    sent = b""
    for message in (
        headers_message("/v1/chat/completions", *REWRITE, mode=BodyMode.FULL_DUPLEX_STREAMED),
        body_message(body[:cut], end=False),
        body_message(body[cut:]),
    ):
        reply = session.receive(message)
        assert isinstance(reply, Reply)
        made = [reply.message, *reply.more] if reply.message is not None else []
        for answer in made:
            parsed = ProcessingResponse.FromString(answer)
            assert "content-length" not in parsed.request_headers.response.header_mutation.remove_headers
            if not parsed.HasField("request_headers"):
                sent += body_of(TypedResponse.parse(answer))[0]
    assert sent == body
    assert picking.notes.all("failed") == ["model_not_rewritten"]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED])
@pytest.mark.parametrize("named", [True, False])
def test_a_body_of_unknown_meaning_is_given_no_model(mode: BodyMode, named: bool) -> None:
    """On a path that nobody knows a model is replaced, where the body names one, and never added."""
    body = b'{"tags":["weights"],"model":"alias"}' if named else b'{"tags":["weights"]}'
    picking = Picking(TWO_POOLS + OBEYING)
    session = picking.session()
    session.receive(headers_message("/pause", *REWRITE, mode=mode))
    reply = session.receive(body_message(body))
    assert isinstance(reply, Reply)
    rewritten = [m for m in (reply.message, *reply.more) if m is not None and b'"model":"acme/embed-1"' in m]
    assert len(rewritten) == named
    assert picking.notes.all("failed") == ([] if named else ["model_not_rewritten"])
    (decision,) = picking.notes.all("decided")
    assert decision.chosen.address == "10.0.0.17:8000"


@pytest.mark.parametrize(
    ("headers", "body", "end", "failed"),
    [
        (REWRITE, CHAT.replace(b"acme/chat-8b", b"acme/embed-1"), True, []),
        ((), CHAT, True, []),
        (REWRITE, CHAT[:200], False, ["model_not_rewritten"]),
        ((*REWRITE, ("content-encoding", "gzip")), gzip.compress(CHAT), True, ["model_not_rewritten"]),
        (REWRITE, b"not json", True, ["model_not_rewritten"]),
    ],
    ids=["the same model", "no wish", "cut off", "compressed", "no JSON"],
)
def test_a_body_is_changed_only_where_it_can_be(
    headers: tuple[tuple[str, str], ...], body: bytes, end: bool, failed: list[str]
) -> None:
    """In all other cases it goes on byte for byte, with its length; what should have been changed is counted."""
    (_, answer), failures = answers(body_message(body, end=end), headers=headers, mode=BodyMode.BUFFERED_PARTIAL)
    common = ProcessingResponse.FromString(answer).request_body.response
    assert not common.HasField("body_mutation")
    assert list(common.header_mutation.remove_headers) == []
    assert failures == failed


def test_a_model_from_the_gateway_needs_no_body() -> None:
    """Where the body streams by, the header alone is enough for a pick."""
    decision = decided(TWO_POOLS + OBEYING, (MODEL_REWRITE, "acme/embed-1"), mode=BodyMode.STREAMED)
    assert decision.chosen.address == "10.0.0.17:8000"


def test_targets_reach_the_decision() -> None:
    """In seconds, for strategies and explanations."""
    request = decided(CONFIG + OBEYING, (TTFT_TARGET, "250"), (LEGACY_NAMES[TPOT_TARGET], "40")).request
    assert (request.ttft_target, request.tpot_target) == (0.25, 0.04)


@pytest.mark.parametrize("text", ["", "0", "-5", "soon", "1e9", "1" * 400, "99999999999", "nan", "inf", "1,5", "0x10"])
def test_what_is_no_time_is_no_target(text: str) -> None:
    """Neither nonsense nor a number that outgrows every clock becomes a deadline."""
    assert read((TTFT_TARGET, text)).wishes is None


@given(text=st.text(max_size=300))
def test_any_text_is_bounded_and_breaks_nothing(text: str) -> None:
    """Whatever stands in the headers: values are short, targets within a day."""
    value = text.encode("utf-8", "replace").decode()
    event = read(*((name, value) for name in LEGACY_NAMES))
    assert len(event.tenant) <= 256
    assert len(event.priority) <= 256
    wishes = event.wishes
    assert wishes is None or (len(wishes.model) <= 256 and 0 < (wishes.ttft or 1) <= 86_400)


@pytest.mark.parametrize("namespace", [SUBSET_NAMESPACE, LB_NAMESPACE])
def test_the_subset_is_read_where_gateways_put_it(namespace: str) -> None:
    """In the namespace of the protocol, or beside the destination, as kgateway does; null there is no hint."""
    picking = Picking()
    session = picking.session(1)
    session.receive(headers_message(metadata={namespace: {SUBSET: [ADDRESSES[1]]}}))
    session.receive(body_message())
    (decision,) = picking.notes.all("decided")
    assert decision.chosen.address == ADDRESSES[1]


def test_the_namespace_of_the_protocol_goes_first() -> None:
    """Where both hold a subset."""
    picking = Picking()
    hints = {SUBSET_NAMESPACE: {SUBSET: [ADDRESSES[2]]}, LB_NAMESPACE: {SUBSET: [ADDRESSES[1]]}}
    session = picking.session(1)
    session.receive(headers_message(metadata=hints))
    session.receive(body_message())
    (decision,) = picking.notes.all("decided")
    assert decision.chosen.address == ADDRESSES[2]
