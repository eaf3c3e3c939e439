"""Several answers to one message, and answers to none, the same on every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from ext_proc.wire.transport import NOTHING, Later, Reply
from tests.unit.wire.serving import TRANSPORTS, Tally, begin, converse, faults, serving
from tests.waiting import until

MANY = tuple(b"%d" % number for number in range(100))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("first", [b"hello", b"many"])
async def test_more_answers_follow_the_first_in_order(transport: str, first: bytes) -> None:
    """Whether or not they are the first of the stream, and then the next message is read."""
    tally = Tally(lambda message: Reply(b"first", more=MANY) if message == b"many" else Reply(message))
    async with serving([tally.method()], transport) as channel:
        answers = await converse(channel, first, b"many", b"last")
    lone = [b"hello"] if first == b"hello" else [b"first", *MANY]
    assert answers == [*lone, b"first", *MANY, b"last", b"bye"]
    assert tally.ends == [True]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_answers_may_go_out_with_the_next_read(transport: str) -> None:
    """Each message still gets its answer before the next comes."""
    tally = Tally(lambda message: message)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        for number in range(50):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() == b"bye"
    assert tally.ends == [True]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_first_of_several_answers_is_the_one_that_counts(transport: str) -> None:
    """Once it is written the session is told that its answer was delivered, whatever becomes of the others."""
    tally = Tally(lambda _: Reply(b"pick", more=(bytes(8_000_000), b"end")))
    async with serving([tally.method()], transport, ("grpc.http2.bdp_probe", 0)) as channel:
        call = begin(channel)
        await call.write(b"go")
        assert await call.read() == b"pick"
        call.cancel()
        await until(lambda: tally.ends == [True])


class Slow:
    """Answers only when nothing comes, after `seconds`."""

    def __init__(self, unasked: Reply, seconds: float = 0.05) -> None:
        self.asked = 0
        self.gate: asyncio.Event | None = None
        self._unasked = unasked
        self._seconds = seconds

    def answer(self, message: bytes) -> Reply:
        """Say nothing to `wait`, and nothing to `quiet` either, which changes nothing."""
        if message == b"quiet":
            return NOTHING
        return Reply(later=Later(self._seconds, self._ask)) if message == b"wait" else Reply(message)

    def _ask(self) -> Reply | Awaitable[Reply]:
        self.asked += 1
        return self._unasked if self.gate is None else self._late(self.gate)

    async def _late(self, gate: asyncio.Event) -> Reply:
        await gate.wait()
        return self._unasked


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("before", [(), (b"hello",)], ids=["first", "later"])
async def test_silence_is_answered_in_the_end(transport: str, before: tuple[bytes, ...]) -> None:
    """Once, and the stream goes on with what comes then."""
    slow = Slow(Reply(b"unasked", more=MANY))
    tally = Tally(slow.answer)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        for message in before:
            await call.write(message)
            assert await call.read() == message
        await call.write(b"wait")
        assert [await call.read() for _ in range(101)] == [b"unasked", *MANY]
        await call.write(b"go on")
        assert await call.read() == b"go on"
        await call.done_writing()
        assert await call.read() == b"bye"
    assert (slow.asked, tally.ends) == (1, [True])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_messages_that_are_not_answered_put_nothing_off(transport: str) -> None:
    """What is to be said after some time is, however many come meanwhile; and once something was said it is not."""
    slow = Slow(Reply(b"unasked"), seconds=0.3)
    tally = Tally(slow.answer)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        reading = asyncio.ensure_future(call.read())
        for _ in range(100):
            if not reading.done():
                await call.write(b"quiet")
                await asyncio.wait((reading,), timeout=0.02)
        assert reading.done()
        assert reading.result() == b"unasked"
        for message in (b"wait", b"quiet", b"here", b"quiet"):
            await call.write(message)
        assert await call.read() == b"here"
        await call.done_writing()
        assert await call.read() == b"bye"
    assert (slow.asked, tally.ends) == (1, [True])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_in_time_is_answered_itself(transport: str) -> None:
    """Then nothing is asked for."""
    slow = Slow(Reply(b"unasked"), seconds=30.0)
    tally = Tally(slow.answer)
    async with serving([tally.method()], transport) as channel:
        assert await converse(channel, b"wait", b"wait", b"here") == [b"here", b"bye"]
    assert (slow.asked, tally.ends) == (0, [True])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_comes_while_something_is_said_unasked_has_its_turn_after_it(transport: str) -> None:
    """Even if that must be waited for; the end of the stream too."""
    slow = Slow(Reply(b"unasked"))
    slow.gate = asyncio.Event()
    tally = Tally(slow.answer)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        await until(lambda: slow.asked == 1)
        await call.write(b"meanwhile")
        await call.done_writing()
        slow.gate.set()
        assert [answer async for answer in call] == [b"unasked", b"meanwhile", b"bye"]
    assert tally.ends == [True]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stream_may_end_unasked(transport: str) -> None:
    """With a last answer, and a status that is no error."""
    tally = Tally(Slow(Reply(b"over", finished=True)).answer)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        assert [answer async for answer in call] == [b"over"]
        assert await call.code() is grpc.StatusCode.OK
        await until(lambda: tally.ends == [True])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("gated", [True, False], ids=["while it is waited for", "before"])
async def test_a_peer_that_leaves_is_not_spoken_to(transport: str, *, gated: bool) -> None:
    """The session is closed once, nothing fails, and no timer is left."""
    slow = Slow(Reply(b"unasked"), seconds=0.05 if gated else 0.4)
    slow.gate = asyncio.Event() if gated else None
    tally = Tally(slow.answer)
    heard = faults()
    async with serving([tally.method()], transport) as channel:
        call: Any = begin(channel)
        await call.write(b"wait")
        await until(lambda: slow.asked == 1 if gated else tally.heard == [b"wait"])
        call.cancel()
        await until(lambda: len(tally.ends) == 1)
        assert await converse(channel, b"next") == [b"next", b"bye"]
    assert (slow.asked, heard) == (1 if gated else 0, [])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_fault_of_what_is_asked_ends_the_stream(transport: str) -> None:
    """With INTERNAL, as any other."""

    def ask() -> Reply:
        raise ValueError

    tally = Tally(lambda _: Reply(later=Later(0.01, ask)))
    heard = faults()
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        await call.write(b"wait")
        assert await call.code() is grpc.StatusCode.INTERNAL
        await until(lambda: tally.ends == [True])
    assert heard == ["ValueError"]
