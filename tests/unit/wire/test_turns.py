"""Streams that wait for their turn at endpoints that are full."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.exchange_states import State
from ext_proc.core.health_states import HealthPolicy, Verdict
from ext_proc.core.model import Ending, Outcome
from ext_proc.core.names import DROPPED_HEADER
from ext_proc.core.pool import EndpointSpec
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingResponse
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import CHAT, Picking, body_message, headers_message
from tests.waiting import until

CONFIG = """
pools:
  main:
    endpoints: ["10.0.0.11:8000"]
    models: [acme/chat-8b]
    caps: {requests: 1}
    queue: {max_requests: 2, wait_s: 5}
tenants: {header: x-tenant, priority_header: x-priority, priorities: {urgent: 10}}
"""
QUIET = CONFIG + "envoy: {message_timeout_s: 10, max_message_timeout_s: 0}\n"
ANTHROPIC = CHAT[:-1] + b',"max_tokens":5}'


def parsed(reply: Reply) -> ProcessingResponse:
    """Read the message of a reply."""
    assert reply.message is not None
    return ProcessingResponse.FromString(reply.message)


def opened(picking: Picking, *headers: tuple[str, str], path: str = "/v1/chat/completions", body: bytes = CHAT) -> Any:
    """Open a session, send headers and body; return session and reply."""
    session = picking.session()
    session.receive(headers_message(path, *headers))
    reply = session.receive(body_message(body))
    assert isinstance(reply, Reply)
    return session, reply


async def second(reply: Reply) -> Reply:
    """Await the second part of an answer."""
    assert reply.then is not None
    return await reply.then()


def settle(picking: Picking) -> None:
    """Let the latest decision end well."""
    decision = picking.notes.all("decided")[-1]
    outcome = Outcome(decision_id=decision.id, ending=Ending.OK, served=decision.chosen.address)
    assert picking.core.feedback.settle(outcome, picking.now)


async def test_envoy_is_asked_for_patience_and_answered_when_a_place_is_free() -> None:
    """The first part asks for the wait and a margin; the second is the pick, after the other request ended."""
    picking = Picking(CONFIG)
    opened(picking)
    session, reply = opened(picking)
    assert parsed(reply).override_message_timeout.seconds == 6
    assert parsed(reply).WhichOneof("response") is None
    answer = asyncio.create_task(second(reply))
    await asyncio.sleep(0)
    picking.now += 3.0
    settle(picking)
    last = await answer
    assert last.finished
    assert parsed(last).WhichOneof("response") == "request_body"
    assert picking.notes.all("decided")[1].request.waited == 3.0
    session.close(delivered=True)
    assert picking.in_flight() == 1


async def test_an_envoy_that_cannot_be_asked_gets_one_answer_in_time() -> None:
    """No message goes out that it would not understand."""
    picking = Picking(QUIET)
    opened(picking)
    _, reply = opened(picking)
    assert reply.message is None
    settle(picking)
    assert parsed(await second(reply)).WhichOneof("response") == "request_body"


async def test_a_client_that_is_gone_gives_up_its_place() -> None:
    """The queue is empty at once, and the next place goes to nobody."""
    picking = Picking(CONFIG)
    opened(picking)
    session, reply = opened(picking)
    answer = asyncio.create_task(second(reply))
    await asyncio.sleep(0)
    answer.cancel()
    session.close(delivered=False)
    assert len(picking.core.admission) == 0
    settle(picking)
    assert picking.in_flight() == 0


async def test_a_pick_that_envoy_did_not_get_frees_its_place_for_the_next() -> None:
    """The client left between the decision and its sending."""
    picking = Picking(CONFIG)
    opened(picking)
    session, _ = opened(picking)
    _, third = opened(picking)
    settle(picking)
    assert len(picking.core.admission) == 1
    session.close(delivered=False)
    assert len(picking.core.admission) == 0
    assert parsed(await second(third)).WhichOneof("response") == "request_body"
    assert picking.in_flight() == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_full_queue_answers_in_the_shape_of_the_api(path: str) -> None:
    """429 with Retry-After and the reason of the drop."""
    picking = Picking(CONFIG)
    for _ in range(3):
        opened(picking)
    _, reply = opened(picking, path=path, body=ANTHROPIC)
    immediate = parsed(reply).immediate_response
    headers = {option.header.key: option.header.raw_value.decode() for option in immediate.headers.set_headers}
    assert immediate.status.code == 429
    assert int(headers["retry-after"]) >= 1
    assert headers[DROPPED_HEADER] == "rejected-saturated"
    error = json.loads(immediate.body)["error"]
    assert error["type"] == "rate_limit_error"
    assert immediate.details == "kvpicker_queue_full"
    assert picking.notes.all("refused") == ["queue_full"]


async def test_every_refusal_says_what_the_filters_left() -> None:
    """Of one that was never tried too: it found no place behind others, or waited there as long as it may."""
    picking = Picking(CONFIG.replace("wait_s: 5", "wait_s: 0.01"))
    opened(picking)
    waiting = [opened(picking)[1] for _ in range(2)]
    opened(picking)
    await asyncio.gather(*map(second, waiting))
    assert picking.notes.all("refused") == ["queue_full", "waited_in_vain", "waited_in_vain"]
    assert [left[-1] for left in picking.notes.all("left")] == ["capacity: 0 of 1 match"] * 3


async def test_the_time_of_a_wait_ends_in_429() -> None:
    """By the clock of the event loop, before Envoy's patience does."""
    picking = Picking(CONFIG.replace("wait_s: 5", "wait_s: 0.01"))
    opened(picking)
    session, reply = opened(picking)
    last = await second(reply)
    assert parsed(last).immediate_response.details == "kvpicker_waited_in_vain"
    assert last.finished
    session.close(delivered=True)
    assert len(picking.core.admission) == 0


async def test_the_end_of_the_service_answers_all_that_wait() -> None:
    """Each gets its 503."""
    picking = Picking(CONFIG)
    opened(picking)
    replies = [opened(picking)[1] for _ in range(2)]
    picking.core.admission.close(picking.now)
    for reply in replies:
        assert parsed(await second(reply)).immediate_response.status.code == 503


async def test_priority_and_tenant_are_what_the_gateway_says() -> None:
    """By name or number; nonsense and numbers without end are no way to the front (F19)."""
    picking = Picking(CONFIG)
    opened(picking)
    said = {"urgent": 10, "-7": -7, "99999999999999999999": 0, "1e9": 0, "NaN": 0, "0x10": 0, "": 0, "500": 100}
    for text, priority in said.items():
        session, reply = opened(picking, ("x-priority", text), ("x-tenant", "t" * 1000))
        if reply.then is not None:
            turn = session._exchange._turn
            assert (turn.priority, turn.tenant) == (priority, "t" * 256), text
            session.close(delivered=False)


async def test_without_configured_headers_clients_cannot_name_any() -> None:
    """Nothing is read of what the operator did not say."""
    picking = Picking(CONFIG.partition("tenants:")[0])
    opened(picking)
    session, _ = opened(picking, ("x-priority", "100"), ("x-tenant", "t"))
    assert (session._exchange._turn.priority, session._exchange._turn.tenant) == (0, "")


async def test_who_comes_later_does_not_overtake_unless_it_is_more_urgent() -> None:
    """A newcomer waits behind its equals even if there is a place, and goes first with a higher priority."""
    picking = Picking(CONFIG)
    opened(picking)
    _, first = opened(picking)
    picking.core.capacity.configure({})
    picking.core.capacity._seen = None
    session, reply = opened(picking)
    assert reply.then is not None
    _, urgent = opened(picking, ("x-priority", "urgent"))
    assert urgent.finished
    picking.core.admission.dispatch(picking.now)
    for waiting in (first, reply):
        assert parsed(await second(waiting)).WhichOneof("response") == "request_body"
    assert session._exchange.state is State.FINISHED


async def test_a_request_whose_body_is_not_seen_waits_at_its_headers() -> None:
    """The answer that waits is then the first of the stream."""
    picking = Picking(CONFIG)
    opened(picking)
    session = picking.session()
    reply = session.receive(headers_message(mode=BodyMode.NONE))
    assert isinstance(reply, Reply)
    assert parsed(reply).HasField("override_message_timeout")
    settle(picking)
    assert parsed(await second(reply)).WhichOneof("response") == "request_headers"


async def test_a_fault_while_waiting_costs_one_pick_only() -> None:
    """It goes on to Envoy's fallback policy, and the next in the row has its turn."""
    picking = Picking(CONFIG)
    opened(picking)
    _, first = opened(picking)
    _, other = opened(picking)
    pick, faults = picking.core.picker.pick, iter([RuntimeError("broken")])

    def broken(*arguments: Any) -> Any:
        for fault in faults:
            raise fault
        return pick(*arguments)

    picking.core.picker.pick = broken  # type: ignore[method-assign]
    settle(picking)
    assert parsed(await second(first)) == ProcessingResponse(request_body={})
    assert parsed(await second(other)).HasField("dynamic_metadata")
    assert picking.notes.all("failed") == ["internal"]


async def test_the_first_endpoint_of_a_pool_is_waited_for() -> None:
    """Scale from zero: who came before it is answered when it is there."""
    zero = CONFIG.replace('["10.0.0.11:8000"]', "[]\n    endpoints_file: none.yaml").replace(
        "wait_s: 5", "scale_from_zero_s: 30"
    )
    picking = Picking(zero)
    _, reply = opened(picking)
    assert parsed(reply).override_message_timeout.seconds == 31
    change = picking.core.registry.replace(
        "main", [EndpointSpec(address="10.0.0.11:8000")], frozenset({"acme/chat-8b"})
    )
    picking.core.follow(change)
    picking.core.admission.dispatch(picking.now)
    assert parsed(await second(reply)).HasField("dynamic_metadata")
    await until(lambda: len(picking.core.admission) == 0)


async def test_all_who_come_while_the_first_endpoint_loads_are_as_patient() -> None:
    """The second is not tried, since the first waits before it, and is to wait for the endpoint all the same."""
    picking = Picking(CONFIG.replace("wait_s: 5", "wait_s: 5, scale_from_zero_s: 30"))
    (endpoint,) = picking.core.registry.snapshot.endpoints
    picking.core.lifecycle.set_ready(endpoint, ready=False)
    replies = [opened(picking)[1] for _ in range(2)]
    assert [parsed(reply).override_message_timeout.seconds for reply in replies] == [31, 31]


async def test_who_waits_for_an_endpoint_that_is_drained_is_told_at_once() -> None:
    """Nobody will serve it: 503, which other gateways may answer, and no place counts as given."""
    picking = Picking(CONFIG)
    opened(picking)
    _, reply = opened(picking)
    (endpoint,) = picking.core.registry.snapshot.endpoints
    picking.core.lifecycle.drain(endpoint, picking.now, 60.0)
    picking.core.admission.dispatch(picking.now)
    assert parsed(await second(reply)).immediate_response.status.code == 503
    assert picking.notes.all("waited") == [("main", "refused")]


async def test_who_waits_for_a_first_endpoint_that_is_listed_before_it_listens_is_spared() -> None:
    """Its first probe is refused: a request would be too. Once it answers, the request is there."""
    picking = Picking(CONFIG.replace('["10.0.0.11:8000"]', "[]\n    endpoints_file: none.yaml").replace(
        "wait_s: 5", "scale_from_zero_s: 30"
    ))  # fmt: skip
    core = picking.core
    core.health.configure(HealthPolicy(), probing=True)
    _, reply = opened(picking)
    core.follow(core.registry.replace("main", [EndpointSpec(address="10.0.0.11:8000")], frozenset({"acme/chat-8b"})))
    (endpoint,) = core.registry.snapshot.endpoints
    for verdict, waiting in ((None, 1), (Verdict.FAILED, 1), (Verdict.GOOD, 1), (Verdict.GOOD, 0)):
        if verdict is not None:
            core.health.probed(endpoint, verdict, "found", picking.now)
        core.admission.dispatch(picking.now)
        assert len(core.admission) == waiting
    assert parsed(await second(reply)).HasField("dynamic_metadata")


async def test_the_model_of_the_gateway_is_in_the_body_after_a_wait_too() -> None:
    """The body that is to go on is kept meanwhile, and counts against the bytes that may wait."""
    picking = Picking(CONFIG + "gateway: {model_rewrite: true}\n")
    other = CHAT.replace(b"acme/chat-8b", b"alias")
    rewrite = ("x-gateway-model-name-rewrite", "acme/chat-8b")
    opened(picking)
    before = picking.core.admission.fills["main"].bytes
    _, reply = opened(picking, rewrite, body=other)
    assert picking.core.admission.fills["main"].bytes - before > len(CHAT)
    answer = asyncio.create_task(second(reply))
    await asyncio.sleep(0)
    settle(picking)
    assert parsed(await answer).request_body.response.body_mutation.body == CHAT
