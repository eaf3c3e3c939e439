"""Conversations that grow."""

from __future__ import annotations

import pytest

from ext_proc.analyze.segments import segments
from ext_proc.analyze.sessions import SessionFinder, Sessions
from tests.unit.analyze.bodies import RULES, chat, hashed, record, words


def followed(*bodies: dict[str, object], times: list[float] | None = None) -> Sessions:
    """Follow bodies."""
    finder = SessionFinder()
    for number, body in enumerate(bodies):
        read = record(body, **({"timestamp": times[number]} if times else {}))
        finder.add(read, segments(read.prompt))
    return finder.result()


def turns(who: str, count: int) -> list[str]:
    """Make the texts of a conversation."""
    return [words((who, place), 20) for place in range(2 * count - 1)]


def test_turns_and_gaps_of_interleaved_conversations() -> None:
    """Three turns of one, two of another and a lone request, with the times between them."""
    bodies = [
        chat(RULES, *turns("a", 1)),
        chat(RULES, *turns("b", 1)),
        chat(RULES, *turns("a", 2)),
        chat(RULES, *turns("c", 1)),
        chat(RULES, *turns("b", 2)),
        chat(RULES, *turns("a", 3)),
    ]
    found = followed(*bodies, times=[0, 1, 10, 11, 31, 40])
    assert (found.conversations, found.growing) == (3, 2)
    assert found.growing_request_share == pytest.approx(5 / 6)
    assert (found.turns.smallest, found.turns.largest, found.turns.mean) == (2, 3, 2.5)
    assert (found.gap_seconds.count, found.gap_seconds.mean) == (3, pytest.approx(70 / 3))


def test_a_changing_system_prompt_does_not_hide_a_conversation() -> None:
    """The messages behind it tell."""
    bodies = [chat(f"It is 12:{count}.\n{RULES}", *turns("a", count)) for count in (1, 2, 3)]
    assert followed(*bodies).turns.largest == 3


def test_requests_that_are_sent_again_do_not_grow() -> None:
    """A retry is no turn."""
    body = chat(RULES, *turns("a", 2))
    assert followed(body, body, body).growing == 0


def test_without_times_there_are_no_gaps() -> None:
    """A gap that is not known is not zero."""
    found = followed(*[chat(RULES, *turns("a", count)) for count in (1, 2)])
    assert found.growing == 1
    assert found.gap_seconds.count == 0


def test_hashes_alone_show_growth_too() -> None:
    """A trace of block ids: each request begins with all blocks of the one before."""
    finder = SessionFinder()
    for count in (2, 4, 6):
        finder.add(hashed(range(count), at=float(count)), [])
    finder.add(hashed([0, 9]), [])
    found = finder.result()
    assert (found.conversations, found.growing, found.turns.largest) == (2, 1, 3)
    assert found.repeated_share == pytest.approx((200 + 400) / (200 + 400 + 600 + 200))


def test_memory_is_bounded() -> None:
    """Conversations that fell silent are closed and still count."""
    finder = SessionFinder(kept=100)
    for number in range(5000):
        finder.add(hashed([number, -number - 1]), [])
        assert len(finder) <= 100
    assert finder.result().conversations == 5000


def test_the_longest_beginning_is_continued() -> None:
    """Somebody else's request that begins alike does not take over a conversation."""
    first, second, third = (chat(RULES, *turns("a", count)) for count in (1, 2, 3))
    assert followed(first, second, first, third).turns.largest == 3
