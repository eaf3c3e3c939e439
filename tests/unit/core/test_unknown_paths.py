"""Paths that are not known, and models that cannot be seen, where several models are served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import Action, BodyMode, Continue, Kind, Message, Refuse, RequestHeaders
from ext_proc.core.exchange_states import State
from ext_proc.core.model import Decision, Operation
from ext_proc.core.prompts import RequestHead
from ext_proc.core.rehearsal import Asked
from tests.unit.core.builders import Fleet, request
from tests.unit.core.test_rehearsal import run
from tests.unit.wire.picking import TWO_POOLS, Picking

CHAT, EMBED = "10.0.0.11:8000", "10.0.0.17:8000"
DEFAULT = f"{TWO_POOLS}\ndefault_pool: chat\n"


def _send(
    exchange: Exchange, path: str, body: bytes | None, kind: str = "application/json", *, complete: bool = True
) -> Action:
    """Send a request as Envoy does: headers, and the body if it is asked for."""
    head = RequestHead(path=path, content_type=kind)
    headers = RequestHeaders(
        method="POST", head=head, end_of_stream=body is None, request_mode=BodyMode.BUFFERED_PARTIAL
    )
    action = exchange.receive(headers)
    if exchange.state is not State.AWAIT_BODY:
        return action
    return exchange.receive(Message(Kind.REQUEST_BODY, body or b"", end_of_stream=complete))


def _chosen(action: Action) -> str:
    assert isinstance(action, Continue)
    assert action.decision is not None
    return action.decision.chosen.address


@pytest.mark.parametrize("config", [TWO_POOLS, DEFAULT], ids=["no default", "default"])
@pytest.mark.parametrize(("model", "address"), [("acme/chat-8b", CHAT), ("acme/embed-1", EMBED)])
def test_a_model_is_heeded_on_any_path(config: str, model: str, address: str) -> None:
    """A call that nobody knows goes to the engines of the model that it names."""
    for path in ("/v1/chat/completions/render", "/embed", "/v1beta/models/x:generateContent", "/"):
        action = _send(Picking(config).exchange(), path, json.dumps({"model": model}).encode())
        assert _chosen(action) == address


@pytest.mark.parametrize("body", [None, b"", b"{}", b"[1]", b"\xff", b'{"model":"nobody"}', b'{"model":[]}'], ids=repr)
def test_without_a_model_that_is_served_the_default_pool_counts(body: bytes | None) -> None:
    """Nothing is refused on a path that is not known; without a default pool any engine will do."""
    picking = Picking(DEFAULT)
    for _ in range(6):
        assert _chosen(_send(picking.exchange(), "/nothing", body)) == CHAT
    assert _chosen(_send(Picking(TWO_POOLS).exchange(), "/nothing", body)) in {CHAT, EMBED}


@pytest.mark.parametrize("kind", ["application/grpc", "application/octet-stream", "text/plain", "audio/wav"])
def test_a_body_that_may_be_endless_is_not_waited_for(kind: str) -> None:
    """Only what may name a model is."""
    exchange = Picking(DEFAULT).exchange()
    assert _chosen(_send(exchange, "/nothing", None, kind)) == CHAT
    head = RequestHead(path="/nothing", content_type=kind)
    exchange = Picking(DEFAULT).exchange()
    exchange.receive(RequestHeaders(method="POST", head=head, request_mode=BodyMode.BUFFERED_PARTIAL))
    assert exchange.state is State.FINISHED


def test_a_model_out_of_view_is_not_asked_for() -> None:
    """A body whose beginning names no model is placed; a whole one without a model is refused."""
    picking, body = Picking(TWO_POOLS), b'{"messages":[{"role":"user","content":"x"}]'
    assert _chosen(_send(picking.exchange(), "/v1/chat/completions", body, complete=False)) in {CHAT, EMBED}
    refused = _send(picking.exchange(), "/v1/chat/completions", body + b"}")
    assert isinstance(refused, Refuse)
    assert refused.refusal.reason == "model_required"
    assert _chosen(_send(Picking(DEFAULT).exchange(), "/v1/chat/completions", body, complete=False)) == CHAT


@pytest.mark.parametrize("fields", [{"truncated": True}, {"unhashed": "encoding_unknown"}, {"unhashed": "too_deep"}])
def test_a_picker_takes_a_request_whose_model_cannot_be_seen(fields: dict[str, Any]) -> None:
    """By load, among all engines."""
    fleet = Fleet(1)
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    assert fleet.refusal(request(model=None)).reason == "model_required"
    addresses = {fleet.pick(request(model=None, **fields)).chosen.address for _ in range(12)}
    assert addresses == {"10.0.0.11:8000", "10.0.1.1:8000"}


def test_a_rehearsal_heeds_it_too() -> None:
    """An explanation says the same as the exchange does."""
    fleet = Fleet(1)
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    made = run(fleet, Asked("/nothing", b'{"model":"other"}', {"content-type": "application/json"}))
    assert isinstance(made.made, Decision)
    assert (made.made.chosen.address, made.made.request.operation) == ("10.0.1.1:8000", Operation.LOOKUP)
