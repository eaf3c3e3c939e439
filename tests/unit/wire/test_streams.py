"""How streams go and end, the same on every transport."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import grpc
import grpc.aio
import pytest

from ext_proc.wire.server import GrpcServer
from ext_proc.wire.transport import Method, Reply
from tests.unit.wire.picking import Picking, body_message, headers_message
from tests.unit.wire.serving import TRANSPORTS, Tally, begin, converse, faults, serving
from tests.waiting import until

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


def echo(message: bytes) -> Reply:
    """Answer with what came."""
    return Reply(message)


async def late(message: bytes) -> Reply:
    """Answer later."""
    await asyncio.sleep(0.01)
    return Reply(message, finished=message == b"last")


async def test_half_close_is_answered_after_everything_else(transport: str) -> None:
    """The answers come in order, and what the session says at its close is the last of them."""
    tally = Tally(echo)
    async with serving([tally.method()], transport) as channel:
        assert await converse(channel, b"1", b"", b"3") == [b"1", b"", b"3", b"bye"]
        await until(lambda: tally.ends == [True])


async def test_half_close_without_a_message_is_a_normal_end(transport: str) -> None:
    """A peer that says nothing at all still gets the last word of the session."""
    tally = Tally(echo)
    async with serving([tally.method()], transport) as channel:
        assert await converse(channel) == [b"bye"]
        await until(lambda: tally.ends == [True])


async def test_messages_without_an_answer_are_read_on(transport: str) -> None:
    """A session may stay silent about some messages."""
    tally = Tally(lambda message: Reply(message if message == b"3" else None))
    async with serving([tally.method()], transport) as channel:
        assert await converse(channel, b"1", b"2", b"3", b"4") == [b"3", b"bye"]


async def test_awaited_answers_keep_their_order(transport: str) -> None:
    """The next message is read when the answer that had to wait is out, and what follows the last is ignored."""
    tally = Tally(late)
    async with serving([tally.method()], transport) as channel:
        assert await converse(channel, b"1", b"2", b"last", b"4") == [b"1", b"2", b"last"]
        await until(lambda: tally.ends == [True])
        assert tally.heard == [b"1", b"2", b"last"]


async def test_finished_stream_ignores_what_else_the_peer_sends(transport: str) -> None:
    """After its last answer a session hears nothing more."""
    tally = Tally(lambda message: Reply(message, finished=True))
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"1")
        assert await call.read() == b"1"
        assert await call.code() is grpc.StatusCode.OK
        await until(lambda: len(tally.ends) == 1)
        assert (tally.heard, tally.ends) == ([b"1"], [True])


async def test_status_and_text_reach_the_peer(transport: str) -> None:
    """A session may end its stream with any status, after an answer or without."""
    refusal = Reply(b"no", True, grpc.StatusCode.RESOURCE_EXHAUSTED, "zu groß")
    async with serving([Tally(lambda _: refusal).method()], transport) as channel:
        call = begin(channel)
        await call.write(b"1")
        assert await call.read() == b"no"
        assert (await call.code(), await call.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "zu groß")


async def test_large_messages_pass_both_ways(transport: str) -> None:
    """20 MB go in and out, again and again on one connection."""
    big = random.Random(3).randbytes(20_000_000)
    async with serving([Tally(echo).method()], transport) as channel:
        for _ in range(3):
            assert await converse(channel, big) == [big, b"bye"]


async def test_burst_of_streams_on_one_connection_is_taken(transport: str) -> None:
    """1,500 streams that begin at once are all open at once, and all end in good order."""
    tally = Tally(echo)
    async with serving([tally.method()], transport) as channel:
        calls = [begin(channel) for _ in range(1500)]
        await asyncio.gather(*(call.write(b"1") for call in calls))
        await asyncio.gather(*(call.read() for call in calls))
        assert tally.running == 1500
        await asyncio.gather(*(call.done_writing() for call in calls))
        assert await asyncio.gather(*(call.read() for call in calls)) == [b"bye"] * 1500
        await until(lambda: tally.ends == [True] * 1500)


async def _leave(channel: grpc.aio.Channel, stage: int) -> None:
    """Go that far in an exchange and be off; stage 4 goes to the end."""
    call = begin(channel)
    steps = [lambda: call.write(headers_message()), call.read, lambda: call.write(body_message()), call.read, call.code]
    for step in steps[: stage if stage < 4 else None]:
        await step()
    call.cancel()


async def test_cancels_at_every_stage_leave_nothing_behind(transport: str, picking: Picking) -> None:
    """Of 2,000 streams in bursts, each session is closed once, and only picks that went out keep their lease."""
    tally = Tally(inner=picking.session)
    stages = random.Random(5).choices(range(5), k=2000)
    async with serving([tally.method()], transport) as channel:
        for start in range(0, 2000, 250):
            await asyncio.gather(*(_leave(channel, stage) for stage in stages[start : start + 250]))
        await until(lambda: tally.running == 0)
    decided, taken_back = len(picking.notes.all("decided")), len(picking.notes.all("finished"))
    assert len(picking.core.ledger) == decided - taken_back >= stages.count(4)
    assert stages.count(4) < tally.opened == len(tally.ends)


async def test_expired_deadline_ends_the_session(transport: str) -> None:
    """A stream over its deadline is closed on our side too."""
    tally = Tally(lambda _: Reply())
    async with serving([tally.method()], transport) as channel:
        call = begin(channel, timeout=0.2)
        await call.write(b"1")
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: tally.ends == [True])


async def test_peer_that_does_not_read_holds_up_nobody_else(transport: str) -> None:
    """An answer that is not taken waits, other streams go on, and the session hears that it was not delivered."""
    tally = Tally(lambda message: Reply(bytes(8_000_000 if message == b"big" else 1), finished=True))
    # Probing would let the peer buffer any size on a fast network.
    async with serving([tally.method()], transport, ("grpc.http2.bdp_probe", 0)) as channel:
        call = begin(channel)
        await call.write(b"big")
        await until(lambda: tally.heard == [b"big"])
        for _ in range(3):
            assert await converse(channel, b"x") == [b"\0"]
        assert tally.ends == [True] * 3
        call.cancel()
        await until(lambda: tally.ends == [True] * 3 + [False])


async def test_cancel_ends_an_answer_that_is_awaited(transport: str) -> None:
    """Nobody works on for a peer that is gone."""
    begun: list[asyncio.Task[None] | None] = []

    async def never(_message: bytes) -> Reply:
        begun.append(asyncio.current_task())
        await asyncio.Event().wait()
        return Reply()

    tally = Tally(never)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"1")
        await until(lambda: len(begun) == 1)
        call.cancel()
        await until(lambda: tally.ends == [False])
        await until(lambda: begun[0] is not None and begun[0].done())


def _raise(_message: bytes) -> Reply:
    raise ZeroDivisionError


async def _raise_later(_message: bytes) -> Reply:
    raise ZeroDivisionError


def _nonsense(_message: bytes) -> Reply:
    return Reply(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [_raise, _raise_later, _nonsense], ids=["at once", "awaited", "no bytes"])
async def test_session_that_fails_costs_its_stream_only(transport: str, answer: Awaitable[Reply]) -> None:
    """A fault is INTERNAL for the peer, is reported once without its text, and the server goes on."""
    reported = faults()
    failing, working = Tally(answer), Method("kvpicker.test", "Work", Tally(echo).open)
    async with serving([failing.method(), working], transport) as channel:
        call = begin(channel)
        await call.write(b"1")
        assert (await call.code(), await call.details()) == (grpc.StatusCode.INTERNAL, "internal error")
        await until(lambda: len(reported) == 1)  # the peer may hear of it first
        assert await converse(channel, b"1", method="/kvpicker.test/Work") == [b"1", b"bye"]
        await until(lambda: len(failing.ends) == 1)
    assert len(reported) == 1


async def test_session_that_cannot_be_opened_is_a_fault(transport: str) -> None:
    """A method that fails to open its session is INTERNAL too."""
    reported = faults()
    async with serving([Method("kvpicker.test", "Talk", lambda: 1 / 0)], transport) as channel:  # type: ignore[arg-type,return-value]
        assert await begin(channel).details() == "internal error"
        await until(lambda: len(reported) > 0)  # the peer may hear of it first
    assert reported == ["ZeroDivisionError"]


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
PING = b"\0\0\x08\x06\0\0\0\0\0kvpicker"
PONG = b"\0\0\x08\x06\x01\0\0\0\0kvpicker"
GOAWAY = 7


async def test_frequent_pings_are_answered_and_not_punished(transport: str) -> None:
    """A peer that pings far more often than the library likes keeps its connection, as Envoy's keepalive needs it."""
    server = GrpcServer([], ["127.0.0.1:0"], transport)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.addresses[0].rpartition(":")[2]))
    writer.write(HELLO)
    for _ in range(20):
        writer.write(PING)
        frame = b""
        while frame != PONG:
            frame = await asyncio.wait_for(reader.readexactly(9), 5)
            assert frame[3] != GOAWAY
            frame += await reader.readexactly(int.from_bytes(frame[:3]))
    writer.close()
    await writer.wait_closed()
    await server.stop(0)


async def test_an_answer_may_have_two_parts(transport: str) -> None:
    """The first goes out at once, on whichever message of the stream; the next message is read after the second."""
    second = asyncio.Event()

    async def then() -> Reply:
        await second.wait()
        return Reply(b"turn")

    tally = Tally(lambda message: Reply(b"patience", then=then) if message == b"wait" else Reply(message))
    async with serving([tally.method()], transport) as channel:
        for messages in ((b"wait",), (b"1", b"wait")):
            second.clear()
            call = begin(channel)
            for message in messages:
                await call.write(message)
            await call.write(b"more")
            await call.done_writing()
            assert [await call.read() for _ in messages] == [*messages[:-1], b"patience"]
            assert tally.heard[-1] == b"wait"
            second.set()
            assert [await call.read() for _ in range(3)] == [b"turn", b"more", b"bye"]
        await until(lambda: tally.ends == [True, True])


async def test_the_first_part_of_an_answer_may_be_nothing(transport: str) -> None:
    """Then there is only the second."""

    async def then() -> Reply:
        return Reply(b"turn", finished=True)

    tally = Tally(lambda _: Reply(then=then))
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        assert await call.read() == b"turn"
        assert await call.code() is grpc.StatusCode.OK
        await until(lambda: tally.ends == [True])


@pytest.mark.parametrize("half", [True, False], ids=["half-closes", "cancels"])
@pytest.mark.parametrize("first", [b"patience", None])
async def test_who_leaves_before_the_second_part_did_not_get_it(
    transport: str,
    first: bytes | None,
    half: bool,
) -> None:
    """The session learns at once that nobody waits any more."""
    begun: list[asyncio.Task[None] | None] = []

    async def never() -> Reply:
        begun.append(asyncio.current_task())
        await asyncio.Event().wait()
        return Reply()

    tally = Tally(lambda _: Reply(first, then=never))
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        await until(lambda: len(begun) == 1)
        if half:
            await call.done_writing()
        else:
            call.cancel()
        await until(lambda: tally.ends == [False])
        await until(lambda: begun[0] is not None and begun[0].done())
