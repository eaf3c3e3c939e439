"""What was published before and what was lost: asked for again, from real ZMQ publishers."""

from __future__ import annotations

import asyncio
import time

import pytest

from ext_proc.sources import kv_reader
from tests.unit.sources.hearing import SIZE, joined, listening, removed, stored
from tests.unit.sources.publishing import Publisher
from tests.waiting import until


@pytest.mark.parametrize("with_topic", [False, True])
async def test_what_was_published_before_is_asked_for(with_topic: bool) -> None:
    """Who comes late learns what is held from the engine's memory, in either form of its answers (D26)."""
    async with Publisher(with_topic=with_topic) as publisher:
        await publisher.publish(stored(1, 2))
        await publisher.publish(removed(2))
        async with listening(publisher) as heard:
            await joined(publisher, heard)
            assert (heard.held(1, 2), heard.held(5), publisher.questions) == (SIZE, 0, [0])
            await publisher.publish(stored(3, parent=1), removed(0))
            await until(lambda: heard.held(1, 3) == 2 * SIZE)
            assert heard.recoveries == {"replayed": 1}
            assert heard.results["replayed"] >= 2


async def test_an_engine_that_was_not_used_yet_is_known_to_hold_nothing() -> None:
    """It publishes nothing, but its answer to the question for all before says so."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await until(lambda: heard.held(1) == 0)
        assert heard.endpoint.slot in heard.index
        await publisher.publish(stored(1, 2))
        await until(lambda: heard.held(1, 2) == 2 * SIZE)
        assert heard.recoveries == {"replayed": 1}


async def test_an_engine_that_is_silent_is_known_by_what_it_published_before() -> None:
    """Nobody waits for its next message; and with what it cannot answer for, it may hold more than is known."""
    async with Publisher() as publisher:
        await publisher.publish(stored(1, 2))
        await publisher.publish(removed(2))
        async with listening(publisher) as heard:
            await until(lambda: heard.held(1, 2) == SIZE)
            assert heard.held(7) == 0
        publisher.forgotten = 1
        async with listening(publisher) as heard:
            await until(lambda: heard.endpoint.slot in heard.index)
            assert heard.held(1) is None


async def test_an_engine_without_an_answer_is_not_known_before_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question is given up, and counted as unanswered."""
    monkeypatch.setattr(kv_reader, "REPLAY_IDLE_S", 0.2)
    async with Publisher() as publisher, listening(publisher) as heard:
        publisher.is_mute = True
        await until(lambda: heard.recoveries == {"unanswered": 1})
        assert (heard.endpoint.slot in heard.index, heard.listener.is_degraded) == (False, False)
        await joined(publisher, heard)


async def test_after_a_cut_the_same_engine_is_still_believed() -> None:
    """What it published last proves that it is the same process, however little of the rest it remembers."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await publisher.publish(stored(2))
        await until(lambda: heard.held(2) == SIZE)
        publisher.forgotten = len(publisher.kept) - 1
        publisher.questions.clear()
        await publisher.interrupted()
        await publisher.publish(stored(3))
        await until(lambda: heard.held(3) == SIZE)
        assert (heard.held(1), heard.held(2), heard.held(9)) == (SIZE, SIZE, 0)
        assert publisher.questions[:1] == [len(publisher.kept) - 2]
        assert not heard.recoveries["restart"]


async def test_after_a_cut_another_engine_is_believed_by_its_own_messages() -> None:
    """Its numbers are further on than those of the one before, so only what they say tells the two apart."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        before = len(publisher.kept)
        await publisher.__aexit__()
        again = Publisher(publisher.port, publisher.replay_port)
        for number in range(before + 3):
            await again.publish(stored(100 + number))
        async with again:
            await until(lambda: heard.held(101) == SIZE)
            assert (heard.held(1), heard.held(100), heard.recoveries["restart"]) == (0, SIZE, 1)


async def test_lost_messages_are_asked_for_again() -> None:
    """A gap is filled; what its messages gave up is gone, and nothing counts twice."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1, 2), is_sent=False)
        await publisher.publish(removed(2), is_sent=False)
        missing = len(publisher.kept) - 2
        await publisher.publish(stored(3, parent=1))
        await until(lambda: heard.held(1, 3) == 2 * SIZE)
        assert (heard.held(1, 2), heard.held(9), publisher.questions[-1]) == (SIZE, 0, missing)
        await publisher.publish(removed(1))
        await until(lambda: heard.held(1) == 0)


async def test_without_an_answer_nothing_older_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the answer is awaited the engine is not in the index; after that it is with what came later."""
    monkeypatch.setattr(kv_reader, "REPLAY_IDLE_S", 0.5)
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        publisher.is_mute = True
        await publisher.publish(removed(0), is_sent=False)
        await publisher.publish(stored(7))
        await until(lambda: heard.listener.is_degraded)
        assert heard.endpoint.slot not in heard.index
        await until(lambda: heard.held(7) == SIZE)
        assert (heard.held(0), heard.recoveries["lost"], heard.listener.is_degraded) == (None, 1, False)


async def test_without_a_place_to_ask_losses_end_belief_at_once() -> None:
    """An engine without a replay port still serves; what is newer than the gap counts."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(removed(0), is_sent=False)
        await publisher.publish(stored(7))
        await until(lambda: heard.held(7) == SIZE)
        assert (heard.held(0), publisher.questions) == (None, [])


async def test_gaps_one_after_the_other_are_asked_for_with_a_pause() -> None:
    """An engine that loses every second message is not flooded with questions (D10)."""
    async with Publisher() as publisher, listening(publisher) as heard:
        await joined(publisher, heard)
        before, began = len(publisher.questions), time.monotonic()
        for number in range(20):
            await publisher.publish(stored(100 + number), is_sent=number % 2 == 1)
            await asyncio.sleep(0.02)
        await until(lambda: heard.held(119) == SIZE)
        assert heard.held(118) == SIZE
        elapsed = time.monotonic() - began
        assert len(publisher.questions) - before <= elapsed / kv_reader.COOL_DOWN_S + 1
        assert heard.recoveries.keys() == {"replayed"}


async def test_a_restarted_engine_holds_nothing_from_its_first_event_on() -> None:
    """The socket connects again by itself; numbers begin anew, with that everything older is forgotten."""
    async with Publisher() as publisher, listening(publisher, replay=False) as heard:
        await joined(publisher, heard)
        await publisher.publish(stored(1))
        await until(lambda: heard.held(1) == SIZE)
        await publisher.__aexit__()
        async with Publisher(publisher.port, publisher.replay_port) as again:

            async def is_forgotten() -> bool:
                again.kept.clear()
                await again.publish(stored(8))
                return heard.held(1) == 0

            await until(is_forgotten)
            assert (heard.held(8), heard.recoveries["restart"] >= 1) == (SIZE, True)
