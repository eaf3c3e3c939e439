"""What engines that report hold of a prompt whose tokens are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import EXPECTED_S, TokenHits, TokenPrompt

BLOCK = 4


def prompt(tokens: list[int], block: int = BLOCK) -> TokenPrompt:
    """Make a prompt of these tokens."""
    return TokenPrompt(TokenHasher(block).chain(tokens), len(tokens))


def hits(*slots: int, block: int = BLOCK) -> TokenHits:
    """Make what knows of engines that report blocks of this size."""
    resident = ResidentIndex()
    for slot in slots:
        resident.add(slot, block)
    return TokenHits(resident)


LONG = prompt(list(range(41)))


def test_reports_say_what_is_held() -> None:
    """Whole blocks from the beginning count, in tokens."""
    known = hits(0, 1)
    known.resident.stored(1, LONG.chain.hashes[:3])
    assert known.held(LONG, [0, 1], 0.0) == [0, 12]


def test_who_does_not_report_is_left_to_our_own_history() -> None:
    """No reports, or blocks of another size, are no answer rather than "nothing held"."""
    known = hits(0)
    known.resident.add(1, 2 * BLOCK)
    known.resident.stored(0, LONG.chain.hashes[:2])
    assert known.held(LONG, [0, 1, 2], 0.0) == [8, None, None]
    assert known.correct([1, 2, 3], LONG, [0, 1, 2], 0.0) == ([8, 2, 3], (True, False, False))


def test_the_last_token_is_always_computed() -> None:
    """A prompt that ends with a block has that block computed again, as engines do."""
    whole, known = prompt(list(range(40))), hits(0)
    known.resident.stored(0, whole.chain.hashes)
    assert known.held(whole, [0], 0.0) == [36]
    assert prompt([]).reusable == prompt([1]).reusable == 0


def test_what_was_just_sent_counts_until_reports_can_be_there() -> None:
    """Siblings of a burst find the first one's engine before that reports anything; later they do not."""
    known = hits(0, 1)
    known.sent(0, LONG, 100.0, wait=2.0)
    assert known.held(LONG, [0, 1], 100.0) == [40, 0]
    assert known.held(LONG, [0], 100.0 + EXPECTED_S + 1.9) == [40]
    assert known.held(LONG, [0], 100.0 + EXPECTED_S + 2.1) == [0]


def test_what_did_not_come_to_be_held_is_forgotten() -> None:
    """After a failure or a restart only reports count."""
    known = hits(0)
    known.sent(0, LONG, 0.0)
    known.remove(0)
    assert known.held(LONG, [0], 0.0) == [0]


def test_nothing_is_kept_of_engines_that_do_not_report() -> None:
    """An engine without reports has our own history, and takes no memory here."""
    known = hits()
    known.sent(0, LONG, 0.0)
    assert not known._sent


def test_what_was_sent_long_ago_takes_no_memory() -> None:
    """Expired blocks are swept."""
    known = hits(0)
    for number in range(2_000):
        known.sent(0, prompt([number] * 41), 10.0 * number)
    assert len(known._sent[0]._until) < 5_000


TREE = st.lists(st.integers(0, 2), min_size=1, max_size=24)
SENDS = st.lists(st.tuples(TREE, st.floats(0, 3), st.floats(0, 4)), max_size=12)


@given(SENDS, TREE, st.floats(0, 5))
def test_expectations_are_what_a_plain_list_of_prompts_says(
    sends: list[tuple[list[int], float, float]], asked: list[int], later: float
) -> None:
    """Whatever was sent when, the longest prefix shared with a prompt that is still expected counts."""
    known, now, plain = hits(0), 0.0, list[tuple[list[int], float]]()
    for tokens, pause, wait in sends:
        now += pause
        known.sent(0, prompt(tokens), now, wait)
        plain.append((tokens, int((now + wait + EXPECTED_S) * 1000)))
    now += later
    wanted = prompt(asked)
    alive = [prompt(tokens).chain.hashes for tokens, end in plain if end > int(now * 1000)]
    shared = [sum(a == b for a, b in zip(blocks, wanted.chain.hashes, strict=False)) for blocks in alive]
    assert known.held(wanted, [0], now) == [min(BLOCK * max(shared, default=0), wanted.reusable)]
