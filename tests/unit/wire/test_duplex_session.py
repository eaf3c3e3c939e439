"""One stream in full duplex, bytes in and bytes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse as TypedResponse

from ext_proc.core.exchange_messages import BodyMode
from ext_proc.core.names import DESTINATION, EXT_PROC_SERVICE, LB_NAMESPACE, RANK, SUBSET, SUBSET_NAMESPACE
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession, ext_proc_method
from ext_proc.wire.passing import Passing
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import ADDRESSES, CHAT, Picking, body_message, headers_message
from tests.unit.wire.serving import TRANSPORTS, begin, converse, serving
from tests.unit.wire.test_waiting import PATH, Source, picking_with
from tests.waiting import until

CAPPED = """
pools:
  main: {endpoints: ["10.0.0.11:8000"], models: [acme/chat-8b], caps: {requests: 1}, queue: {max_requests: 2}}
"""
FULL = BodyMode.FULL_DUPLEX_STREAMED


def duplex_headers(*extra: tuple[str, str], **how: object) -> bytes:
    """Write the headers of a stream in full duplex both ways."""
    return headers_message("/v1/chat/completions", *extra, mode=FULL, response_mode=FULL, **how)  # type: ignore[arg-type]


def answers(reply: object) -> Iterator[TypedResponse]:
    """Parse the answers of a reply."""
    assert isinstance(reply, Reply)
    assert not reply.finished
    for message in (reply.message, *reply.more):
        assert message is not None
        yield TypedResponse.parse(message)


def picked(answer: TypedResponse) -> str:
    """Return the pick, after checking that header and metadata agree and nothing else is set (G12, G13)."""
    assert answer.request_headers is not None
    assert answer.request_headers.response is not None
    mutation = answer.request_headers.response.header_mutation
    assert mutation is not None
    (option,) = mutation.set_headers
    assert option.header is not None
    assert option.header.key == DESTINATION
    assert set(mutation.remove_headers) <= {RANK}
    assert answer.mode_override is None
    metadata = answer.dynamic_metadata
    assert metadata is not None
    value = metadata.to_dict()[LB_NAMESPACE][DESTINATION]
    assert option.header.raw_value.decode() == value
    return str(value)


def body_of(answer: TypedResponse) -> tuple[bytes, bool]:
    """Return the piece that an answer lets pass, after checking that it changes no header."""
    part = answer.request_body or answer.response_body
    assert part is not None
    assert part.response is not None
    assert part.response.header_mutation is None
    assert part.response.body_mutation is not None
    streamed = part.response.body_mutation.streamed_response
    assert streamed is not None
    return streamed.body, streamed.end_of_stream


def test_headers_with_the_pick_come_before_the_body() -> None:
    """Nothing is said until the body is whole; then come one address, and the body as it was."""
    session = ExtProcSession(Picking().exchange(), Encoder(3, 1), Picking().notes, Passing())
    silent = session.receive(duplex_headers())
    assert isinstance(silent, Reply)
    assert (silent.message, silent.finished) == (None, False)
    assert silent.later is not None
    assert silent.later.seconds == 10.0
    head, body = answers(session.receive(body_message()))
    assert picked(head) in ADDRESSES
    assert body_of(body) == (CHAT, True)


def test_a_list_goes_where_the_data_plane_is_known_to_take_one() -> None:
    """Then all attempts are named, the chosen one first (G10)."""
    session = ExtProcSession(Picking().exchange(), Encoder(3, 3), Picking().notes, Passing())
    session.receive(duplex_headers())
    head, _ = answers(session.receive(body_message()))
    assert len(picked(head).split(",")) == 3


def test_an_empty_subset_is_refused_at_once() -> None:
    """With 503, whether a body is still to come or not."""
    hint = {SUBSET_NAMESPACE: {SUBSET: []}}
    reply = Picking().session(1).receive(duplex_headers(end=True, metadata=hint))
    assert isinstance(reply, Reply)
    assert reply.finished
    assert reply.message is not None
    refusal = TypedResponse.parse(reply.message).immediate_response
    assert refusal is not None
    assert refusal.status is not None
    assert int(refusal.status.code) == 503


def test_what_is_no_message_ends_the_stream() -> None:
    """As outside of full duplex."""
    session = Picking().session(1)
    session.receive(duplex_headers())
    reply = session.receive(b"\xff\xff")
    assert isinstance(reply, Reply)
    assert reply.finished
    assert session.receive(b"\x6a\x00") == Reply()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_long_body_comes_back_whole(transport: str) -> None:
    """Over a real connection, in pieces that follow each other."""
    picking = Picking()
    whole = CHAT + b" " * 1_000_000
    method = ext_proc_method(picking.exchange, Encoder(3, 1), picking.notes)
    async with serving([method], transport) as channel:
        sent = (duplex_headers(), body_message(whole[:500_000], end=False), body_message(whole[500_000:]))
        head, *rest = [TypedResponse.parse(answer) for answer in await converse(channel, *sent, method=PATH)]
    assert picked(head) in ADDRESSES
    came = [body_of(answer) for answer in rest]
    assert b"".join(piece for piece, _ in came) == whole
    assert [end for _, end in came] == [False] * (len(came) - 1) + [True]
    assert max(len(piece) for piece, _ in came) == 62_000


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_tokens_are_waited_for(transport: str) -> None:
    """The pick by exact tokens works in full duplex too."""
    source = Source()
    picking = picking_with(source)
    method = ext_proc_method(picking.exchange, Encoder(3, 1), picking.notes)
    async with serving([method], transport) as channel:
        talk = asyncio.create_task(converse(channel, duplex_headers(), body_message(), method=PATH))
        await until(lambda: bool(source.bodies))
        source.gate.set()
        assert len(await talk) == 2
    assert picking.notes.all("decided")[0].exact[0] is True


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("step", range(4), ids=["headers", "part of the body", "decision", "answer"])
async def test_streams_that_are_cut_leave_nothing(transport: str, step: int) -> None:
    """At each step of an exchange (G06)."""
    picking = Picking()
    method = ext_proc_method(picking.exchange, Encoder(3, 1), picking.notes)
    messages = [duplex_headers(), body_message(CHAT[:50], end=False), body_message(CHAT[50:]), b"\x1a\x00"]
    async with serving([method], transport) as channel:
        for _ in range(10):
            call = begin(channel, f"/{EXT_PROC_SERVICE}/Process")
            for message in messages[: step + 1]:
                await call.write(message)
            if step > 1:
                await call.read()
            call.cancel()
        await until(lambda: len(picking.notes.all("finished")) == (10 if step > 1 else 0))
        assert len(await converse(channel, duplex_headers(), body_message(), method=PATH)) == 2
        await until(lambda: picking.in_flight() == 0)
    assert picking.notes.all("failed") == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_requests_wait_for_their_turn(transport: str) -> None:
    """At an endpoint at its cap the second waits, without asking Envoy for patience, and then passes whole."""
    picking = Picking(CAPPED)
    method = ext_proc_method(picking.exchange, Encoder(1), picking.notes)
    async with serving([method], transport) as channel:
        assert len(await converse(channel, duplex_headers(), body_message(), method=PATH)) == 2
        assert picking.in_flight() == 0  # nobody answered, so the lease went with the stream
        first, second = begin(channel, PATH), begin(channel, PATH)
        for message in (duplex_headers(), body_message()):
            await first.write(message)
        await first.read()
        for message in (duplex_headers(), body_message()):
            await second.write(message)
        await until(lambda: len(picking.core.admission) == 1)
        first.cancel()
        head, body = [TypedResponse.parse(await second.read()) for _ in range(2)]
        second.cancel()
    assert picked(head) == ADDRESSES[0]
    assert body_of(body) == (CHAT, True)


async def test_who_leaves_while_waiting_leaves_the_queue() -> None:
    """Its body is dropped with it."""
    picking = Picking(CAPPED)
    keeper = picking.session(1)
    keeper.receive(duplex_headers())
    keeper.receive(body_message())
    session = picking.session(1)
    session.receive(duplex_headers())
    reply = session.receive(body_message())
    assert isinstance(reply, Reply)
    assert (reply.message, reply.finished) == (None, False)
    assert reply.then is not None
    assert len(picking.core.admission) == 1
    session.close(delivered=True)
    assert len(picking.core.admission) == 0
    assert picking.notes.all("failed") == []
