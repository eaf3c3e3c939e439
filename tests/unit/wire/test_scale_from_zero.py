"""A pool without an endpoint: who waits for the first one, and what those are left with who waited in vain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_proc.core.names import DROPPED_HEADER
from ext_proc.core.pool import EndpointSpec
from ext_proc.wire._pb.ext_proc_pb2 import ImmediateResponse
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import Picking, body_message, headers_message
from tests.unit.wire.test_turns import parsed, second, settle

EMPTY = """
pools:
  main:
    endpoints: []
    endpoints_file: none.yaml
    models: [acme/chat-8b]
    caps: {requests: 1}
    queue: {wait_s: 5, scale_from_zero_s: %s, max_requests: 6, max_bytes: 65536}
tenants: {header: x-tenant}
"""
ADDRESS = "10.0.0.11:8000"


def asked(picking: Picking, number: int, tenant: str = "t1", path: str = "/v1/chat/completions") -> Any:
    """Send a request of about 300 tokens; return session and reply."""
    body = {"model": "acme/chat-8b", "max_tokens": 20, "messages": [{"role": "user", "content": f"{number} " * 600}]}
    session = picking.session()
    session.receive(headers_message(path, ("x-tenant", tenant)))
    return session, session.receive(body_message(json.dumps(body).encode()))


def arrive(picking: Picking) -> None:
    """Let the first endpoint come, and decide who waits for it."""
    core = picking.core
    core.follow(core.registry.replace("main", [EndpointSpec(address=ADDRESS)], frozenset({"acme/chat-8b"})))
    core.admission.dispatch(picking.now)


def turned_away(reply: Reply) -> ImmediateResponse:
    """Return an answer that kvpicker gives itself."""
    message = parsed(reply)
    assert message.HasField("immediate_response")
    return message.immediate_response


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_without_waiting_it_is_503_in_the_shape_of_the_api(path: str) -> None:
    """With Retry-After, at once (E12)."""
    _, reply = asked(Picking(EMPTY % 0), 0, path=path)
    answer = turned_away(reply)
    error = json.loads(answer.body)
    headers = {entry.header.key: entry.header.raw_value for entry in answer.headers.set_headers}
    assert answer.status.code == 503
    assert int(headers["retry-after"]) >= 1
    assert error["error"]["message"]
    assert (error.get("type") == "error") is (path == "/v1/messages")
    assert DROPPED_HEADER in headers


async def test_503_at_the_limit_gives_everything_back() -> None:
    """Five of a tenant wait in vain: no bytes, no place and no share of it stay spent, and its next is served (F17).

    The case's three seconds are a tenth of one (E12).
    """
    picking = Picking(EMPTY % 0.1)
    admission = picking.core.admission
    waiting = [asked(picking, number)[1] for number in range(5)]
    full = admission.fills["main"]
    assert full.requests == 5
    assert full.bytes >= 5 * 1200
    answers = [turned_away(await second(reply)) for reply in waiting]
    assert [answer.status.code for answer in answers] == [503] * 5
    empty = admission.fills["main"]
    assert (empty.requests, empty.bytes, len(admission), picking.in_flight()) == (0, 0, 0, 0)
    arrive(picking)
    _, reply = asked(picking, 5)
    assert parsed(reply).HasField("dynamic_metadata")
    assert picking.in_flight() == 1


async def test_who_waited_in_vain_is_not_behind_others_later() -> None:
    """What a tenant asked for and did not get is not counted as its share (F17)."""
    picking = Picking(EMPTY % 0.1)
    in_vain = [asked(picking, number)[1] for number in range(5)]
    early = asked(picking, 5, "t2")[1]
    for reply in in_vain:
        assert turned_away(await second(reply)).status.code == 503
    late = [asked(picking, 10, "t2")[1], asked(picking, 11, "t1")[1]]
    arrive(picking)
    assert parsed(await second(early)).HasField("dynamic_metadata")
    settle(picking)
    assert parsed(await second(late[1])).HasField("dynamic_metadata"), "t2 has had one, t1 none"
    picking.core.admission.close(picking.now)
    assert turned_away(await second(late[0])).status.code == 503


def test_who_waits_is_bounded_in_count_and_bytes() -> None:
    """The seventh is refused though it would be served with the first endpoint, and so is one too many bytes (E12)."""
    picking = Picking(EMPTY % 10)
    replies = [asked(picking, number)[1] for number in range(7)]
    assert [reply.then is not None for reply in replies] == [True] * 6 + [False]
    assert turned_away(replies[-1]).status.code in {429, 503}
    assert picking.core.admission.fills["main"].requests == 6
    large = Picking(EMPTY % 10)
    body = json.dumps({"model": "acme/chat-8b", "messages": [{"role": "user", "content": "x" * 70_000}]}).encode()
    session = large.session()
    session.receive(headers_message())
    reply = session.receive(body_message(body))
    assert isinstance(reply, Reply)
    assert turned_away(reply).status.code in {429, 503}
    assert large.core.admission.fills["main"].bytes == 0


def test_nobody_is_held_when_its_client_has_gone() -> None:
    """Its place and its bytes are free at once (E12)."""
    picking = Picking(EMPTY % 10)
    session, _ = asked(picking, 0)
    assert len(picking.core.admission) == 1
    session.close(delivered=False)
    assert (len(picking.core.admission), picking.core.admission.fills["main"].bytes) == (0, 0)
