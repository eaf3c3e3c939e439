"""Listening to KV events, from real ZMQ publishers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from ext_proc.config import parse
from ext_proc.core.kv_state import Disbelief
from ext_proc.core.pool import EndpointSpec
from ext_proc.sources import kv_events, kv_reader, kv_sockets
from ext_proc.sources.kv_events import NO_EVENTS, NOT_CONNECTED
from tests.unit.sources.hearing import SIZE, Listening, joined, listening, removed, running, stored
from tests.unit.sources.publishing import Publisher, neighbours
from tests.waiting import until


async def test_garbage_is_dropped_and_counted() -> None:
    """Whatever frames come, the next good message is used (D07)."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        number = len(publisher.kept).to_bytes(8, "big")
        good = publisher.kept[0]
        for frames in ([b"t", b"\0\0\1", good], [b"t"], [b"t", number, good, b"extra"], [b"t", number]):
            await publisher.send(frames)
        for payload in (b"\x93\xcb", b"", b"hello", bytes(5 * 1024 * 1024)):
            await publisher.send([b"t", b"\x7f" + number[1:], payload])
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        expected = {"number": 1, "frames": 3, "not_msgpack": 3, "too_large": 1}
        assert {result: heard.results[result] for result in expected} == expected
        assert heard.recoveries["lost"] <= 1  # what was published before we had connected


async def test_d07_numbers_below_zero_are_no_numbers() -> None:
    """A live message with the number of an end mark, or another negative one, does not end belief in what is held."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        for number in (-1, -2, -(2**63)):
            written = number.to_bytes(8, "big", signed=True)
            await publisher.send([b"t", written, publisher.kept[0]])
            await publisher.send([b"t", written, b""])
        await publisher.publish(stored(2))
        await until(lambda: heard.held(2) == SIZE)
        assert heard.held(1) == SIZE
        assert (heard.results["number"], heard.recoveries["restart"]) == (6, 0)


async def test_d08_messages_that_come_twice_or_late_are_no_new_process() -> None:
    """A relay may send a message again, or after those that follow it; what a new process sends was made later."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        last = len(publisher.kept) - 1

        def made(at: float, *events: Any) -> bytes:
            return msgspec.msgpack.encode([at, list(events), 0])

        async def send(number: int, payload: bytes) -> None:
            await publisher.send([b"kv@e@m", number.to_bytes(8, "big"), payload])

        await send(last, publisher.kept[last])
        await send(last + 1, made(5.0, stored(2)))
        await send(last, made(4.0, stored(9)))
        await send(last + 2, made(6.0, stored(3)))
        await until(lambda: heard.held(3) == SIZE)
        assert (heard.held(1), heard.held(2), heard.held(9)) == (SIZE, SIZE, None)
        assert (heard.results["repeated"], heard.recoveries["restart"]) == (2, 0)
        await send(0, made(5.5, stored(7)))
        await until(lambda: heard.held(7) == SIZE)
        assert (heard.held(1), heard.recoveries["restart"]) == (0, 1)


async def test_a_message_without_bounds_does_not_reach_memory() -> None:
    """Who sends more than any engine does is disconnected; the socket connects again, and the next good one counts."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.send([b"t", b"x" * 8, bytes(kv_sockets.LARGEST_MESSAGE + 1)])
        await publisher.publish(stored(1), is_sent=False)

        async def is_back() -> bool:
            await publisher.publish(stored(2))
            return heard.held(2) == SIZE

        await until(is_back)
        await until(lambda: heard.held(1) == SIZE)
        assert not heard.results["too_large"]


async def test_only_the_topic_that_counts_is_heard() -> None:
    """A publisher may carry more than one topic."""
    async with Publisher(topic=b"kv@a") as publisher, listening(publisher, ", topic: kv@a") as heard:
        await joined(publisher, heard)
        for number in range(5):
            await publisher.send([b"other", number.to_bytes(8, "big"), b"hello"])
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        assert not heard.results["not_msgpack"]
        assert not heard.recoveries["restart"]


async def test_each_rank_has_a_port() -> None:
    """Ranks publish at ports that follow each other; the engine counts as their mean."""
    first, second = neighbours()
    async with first, second:
        heard = Listening(f"port_offset: {first.port - 8000}, ranks: 2")
        async with running(heard):
            for publisher in (first, second):

                async def is_heard(publisher: Publisher = publisher, number: int = publisher.port) -> bool:
                    await publisher.publish(stored(number), is_sent=True)
                    return bool(heard.held(number))

                await until(is_heard)
            assert heard.held(first.port) == heard.held(second.port) == SIZE // 2


async def test_a_flood_leaves_the_loop_to_others() -> None:
    """While an engine publishes as fast as it can, others wait for milliseconds; in the end all of it counts."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        delays: list[float] = []

        async def others() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.001)
                delays.append(time.monotonic() - began)

        watching = asyncio.create_task(others())
        for number in range(3000):
            await publisher.publish(*[stored(number * 10 + place) for place in range(10)], removed(number * 10 + 1))
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: heard.held(29_999) == SIZE)
        watching.cancel()
        delays.sort()
        assert delays[int(len(delays) * 0.9)] < 0.05
        assert (heard.held(29_992), heard.held(29_991)) == (SIZE, 0)


async def test_after_work_the_loop_has_as_long_for_others() -> None:
    """A turn of work is followed by as much time for all others; after a moment of work they just have their turn."""
    heard: list[str] = []
    asyncio.get_running_loop().call_soon(heard.append, "other")
    await kv_reader._rest(0.0)
    assert heard == ["other"]
    began = time.monotonic()
    await kv_reader._rest(0.05)
    assert time.monotonic() - began >= 0.049


async def test_an_engine_that_is_at_work_and_silent_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes although there is work: a port, flag or topic is wrong; said once, until it is mended (D25)."""
    monkeypatch.setattr(kv_events, "SILENCE_S", 0.3)
    async with Publisher() as publisher, listening(publisher, ", topic: kv") as heard:
        await until(lambda: (heard.listener.silence(heard.endpoint, time.monotonic()) or 0) > 0.5)
        assert heard.problems == []
        heard.busy.add(heard.endpoint.slot)
        await until(lambda: heard.problems == [NO_EVENTS])
        assert (heard.listener.is_degraded, heard.endpoint.slot in heard.index) == (True, False)
        await joined(publisher, heard)
        await until(lambda: heard.problems == [NO_EVENTS, ""])


async def test_a_rank_that_is_configured_and_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one was heard for long; what it says is believed, but no request names a rank that may not exist."""
    monkeypatch.setattr(kv_events, "SILENCE_S", 0.2)
    first, second = neighbours()
    async with first, second:
        second.discard()
        heard = Listening(f"port: {first.port}, replay_port: {first.replay_port}, ranks: 2, pin_rank: true")
        async with running(heard):

            async def is_heard() -> bool:
                await first.publish(stored(1))
                return heard.held(1) == SIZE // 2

            await until(is_heard)
            await until(lambda: heard.problems == [NOT_CONNECTED])
            assert heard.index.ranks(heard.endpoint.slot) == 0
            async with Publisher(second.port, second.replay_port):
                await until(lambda: heard.problems == [NOT_CONNECTED, ""])
                await until(lambda: heard.index.ranks(heard.endpoint.slot) == 2)
                assert heard.held(1) == SIZE


@pytest.mark.parametrize("replay", [True, False], ids=["can be asked", "cannot be asked"])
async def test_an_engine_that_was_heard_and_is_cut_off_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, *, replay: bool
) -> None:
    """Its cache changes and nobody tells; once there is a connection again, what can be asked for is believed again."""
    monkeypatch.setattr(kv_events, "CUT_S", 0.1)
    async with Publisher() as publisher, listening(publisher, replay=replay) as heard:
        await joined(publisher, heard)
        assert heard.held(0) == SIZE
        await publisher.interrupted(stay_away=True)
        await until(lambda: heard.problems == [NOT_CONNECTED])
        assert (heard.listener.is_degraded, heard.held(0)) == (True, None)
        await until(lambda: [state.disbelief for state in heard.states()] == [Disbelief.NOT_CONNECTED])
        await publisher.come_back()

        async def is_believed() -> bool:
            if replay:
                return heard.held(0) == SIZE
            await publisher.publish(stored(1))
            return heard.held(1) == SIZE

        await until(is_believed)
        await until(lambda: heard.problems == [NOT_CONNECTED, ""])
        assert [state.disbelief for state in heard.states()] == [None]
        assert not heard.listener.is_degraded


async def test_how_listening_goes_is_told_of_each_publisher() -> None:
    """From no connection to a gap that was not filled; who is not listened to has no publishers."""
    async with Publisher() as publisher:
        address = f"tcp://127.0.0.1:{publisher.port}"
        heard = Listening(f"port: {publisher.port}, replay_port: {publisher.replay_port}")
        assert heard.states() == ()
        async with running(heard):
            await until(lambda: len(heard.states()) == 1)
            await joined(publisher, heard)
            await until(lambda: heard.states()[0].lag_s is not None)  # an answer may come before a live message
            (state,) = heard.states()
            assert (state.address, state.connected, state.disbelief, state.complete) == (address, True, None, True)
            assert (state.blocks, state.block_tokens, state.lost) == (1, SIZE, 0)
            gaps = state.gaps
            assert state.messages >= 1
            assert state.age_s is not None
            assert state.lag_s is not None
            assert state.lag_s > 1e6  # the publisher's clock stands still
            publisher.forgotten = len(publisher.kept) + 1
            await publisher.publish(removed(0), is_sent=False)
            await publisher.publish(stored(7))
            await until(lambda: heard.held(7) == SIZE)
            (state,) = heard.states()
            assert (state.complete, state.gaps, state.lost) == (False, gaps + 1, 1)
            await publisher.__aexit__()
            await until(lambda: not heard.states()[0].connected)
            assert heard.states()[0].disbelief is None


async def test_why_a_publisher_is_not_believed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, nothing heard, an answer that is awaited, silence in spite of work."""
    monkeypatch.setattr(kv_events, "SILENCE_S", 0.2)
    reasons: list[Disbelief | None] = []

    def note() -> bool:
        reasons.extend(state.disbelief for state in heard.states() if state.disbelief not in reasons)
        return Disbelief.SILENT in reasons

    publisher = Publisher()
    publisher.is_mute = True
    heard = Listening(f"port: {publisher.port}, replay_port: {publisher.replay_port}, topic: other")
    await publisher.interrupted(stay_away=True)
    async with publisher, running(heard):
        await until(lambda: note() or reasons == [Disbelief.NOT_CONNECTED])
        await publisher.come_back()
        await until(lambda: note() or Disbelief.MISSING_EVENTS in reasons)
        await until(lambda: note() or Disbelief.NOTHING_HEARD in reasons)
        heard.busy.add(heard.endpoint.slot)
        await until(note)
    assert reasons == [
        Disbelief.NOT_CONNECTED, Disbelief.MISSING_EVENTS, Disbelief.NOTHING_HEARD, Disbelief.SILENT
    ]  # fmt: skip


async def test_endpoints_come_and_go() -> None:
    """What an engine that is gone held is forgotten at once, and who takes its slot inherits nothing."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        gone = heard.endpoint
        change = heard.registry.replace("p", [EndpointSpec(address="127.0.0.2:8000")])
        for endpoint in change.removed:
            heard.index.remove(endpoint.slot)
        assert gone.slot not in heard.index
        await until(lambda: heard.listener.silence(heard.endpoint, time.monotonic()) is not None)
        assert heard.listener.silence(gone, time.monotonic()) is None
        heard.registry.replace("p", [])
        heard.registry.replace("p", [EndpointSpec(address="127.0.0.1:8000")])
        await joined(publisher, heard)
        await until(lambda: len(heard.index) == 1)


async def test_a_changed_configuration_applies() -> None:
    """Another port is listened to without a restart of anything."""
    async with Publisher() as publisher, Publisher() as other, listening(publisher) as heard:
        await joined(publisher, heard)
        heard.listener.configure(heard.config(f"port: {other.port}"))
        await until(lambda: heard.endpoint.slot not in heard.index)
        await joined(other, heard)
        heard.listener.configure(parse("pools: {p: {endpoints: ['10.0.0.1:80']}}"))
        await until(lambda: heard.listener.silence(heard.endpoint, time.monotonic()) is None)
        assert (heard.endpoint.slot in heard.index, len(heard.index)) == (False, 0)
