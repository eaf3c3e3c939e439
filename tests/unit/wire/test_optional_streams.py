"""Streams that a server may end when it stops, the same on every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from ext_proc.wire.server import GrpcServer
from ext_proc.wire.transport import Reply, Waiting
from tests.unit.wire.serving import TRANSPORTS, Tally, begin
from tests.waiting import until


def waits(message: bytes) -> Reply:
    """Answer with what came; what follows `wait` is optional."""
    return Reply(message, optional=message == b"wait")


async def talk(channel: grpc.aio.Channel, *messages: bytes) -> Any:
    """Begin a stream and go through some messages, each answered."""
    call = begin(channel)
    for message in messages:
        await call.write(message)
        assert await call.read() == message
    return call


@pytest.fixture(params=TRANSPORTS)
async def server(request: pytest.FixtureRequest) -> Any:
    """Run a server whose streams are counted."""
    tally = Tally(waits)
    running = GrpcServer([tally.method()], ["127.0.0.1:0"], request.param)
    await running.start()
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(running.addresses[0], options=options) as channel:
        yield running, tally, channel
        await running.stop(0)


async def test_stop_ends_what_is_optional_and_cuts_the_rest(server: Any) -> None:
    """A stream whose next message is optional ends with OK at once, however long the grace; others are cut after it."""
    running, tally, channel = server
    optional = await talk(channel, b"1", b"wait")
    needed = await talk(channel, b"1", b"wait", b"2")
    stop = asyncio.ensure_future(running.stop(0.5))
    assert await optional.code() is grpc.StatusCode.OK
    assert not stop.done()
    await stop
    assert await needed.code() is not grpc.StatusCode.OK
    assert tally.ends == [True, True]


async def test_a_stream_that_becomes_optional_during_the_stop_ends(server: Any) -> None:
    """A running exchange goes on to the point where it may end, and ends there."""
    running, tally, channel = server
    call = await talk(channel, b"1")
    stop = asyncio.ensure_future(running.stop(5))
    await asyncio.sleep(0)
    await call.write(b"wait")
    assert await call.read() == b"wait"
    assert await call.code() is grpc.StatusCode.OK
    await stop
    assert tally.ends == [True]


@pytest.mark.parametrize("leave", ["cancel", "done_writing"])
async def test_a_peer_that_leaves_meanwhile_is_forgotten(server: Any, leave: str) -> None:
    """Streams that are gone by themselves are neither kept nor ended again."""
    running, tally, channel = server
    calls = [await talk(channel, b"1", b"wait") for _ in range(20)]
    for call in calls:
        left = getattr(call, leave)()
        if asyncio.iscoroutine(left):
            await left
    await until(lambda: tally.ends == [True] * 20)
    assert not any(transport._waiting._streams for transport in running._transports)


async def test_an_optional_message_that_comes_is_answered(server: Any) -> None:
    """Waiting does not change how a stream goes on."""
    _, tally, channel = server
    call = await talk(channel, b"1", b"wait", b"wait", b"2", b"3")
    await call.done_writing()
    assert await call.read() == b"bye"
    assert tally.ends == [True]


def test_who_comes_after_the_end_is_ended_at_once() -> None:
    """Nobody waits for an end that has been."""
    ended: list[str] = []
    waiting: Waiting[str] = Waiting(ended.append)
    waiting.add("before")
    waiting.add("gone")
    waiting.discard("gone")
    waiting.discard("stranger")
    waiting.end()
    waiting.add("after")
    assert ended == ["before", "after"]
