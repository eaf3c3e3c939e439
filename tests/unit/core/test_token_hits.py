"""What engines that report hold of a prompt whose tokens are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.prefill import Prefill
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
    known.sent("a", 0, LONG, 100.0, Prefill(wait=2.0))
    assert known.held(LONG, [0, 1], 100.0) == [40, 0]
    assert known.held(LONG, [0], 100.0 + EXPECTED_S + 1.9) == [40]
    assert known.held(LONG, [0], 100.0 + EXPECTED_S + 2.1) == [0]


def test_after_the_end_of_a_request_only_reports_count() -> None:
    """By then they are here; what an engine evicted since is not held, however lately it was sent."""
    known = hits(0)
    known.sent("a", 0, LONG, 0.0)
    known.ended("a", 1.0, computed=True)
    assert known.held(LONG, [0], 1.05) == [40]
    assert known.held(LONG, [0], 1.2) == [0]


def test_what_was_not_computed_is_forgotten_at_once() -> None:
    """A request that its engine refused leaves nothing, and another one with the same prompt is not touched."""
    known = hits(0)
    known.sent("a", 0, LONG, 0.0)
    known.sent("b", 0, prompt(list(range(21))), 0.0)
    known.ended("a", 0.0, computed=False)
    assert known.held(LONG, [0], 0.0) == [20]
    known.ended("b", 0.0, computed=False)
    known.ended("stranger", 0.0, computed=False)
    assert known.held(LONG, [0], 0.0) == [0]


def test_a_restart_leaves_nothing() -> None:
    """What was on its way to an engine that began anew does not come to be held; ends come later all the same."""
    known = hits(0, 1)
    for slot, name in enumerate("ab"):
        known.sent(name, slot, LONG, 0.0)
    known.remove(0)
    known.ended("a", 0.0, computed=True)
    assert known.held(LONG, [0, 1], 1.0) == [0, 40]


def test_nothing_is_kept_of_engines_that_do_not_report() -> None:
    """An engine without reports has our own history, and takes no memory here."""
    known = hits()
    known.sent("a", 0, LONG, 0.0)
    assert not known._sent


def test_what_is_over_takes_no_memory() -> None:
    """Whether its end was heard of or not."""
    known = hits(0)
    for number in range(100):
        known.sent(str(number), 0, prompt([number] * 41), float(number))
        if number % 2:
            known.ended(str(number), float(number), computed=True)
    known.held(LONG, [0], 200.0)
    assert (known._sent, known._copies, len(known._over)) == ({}, {0: {None: {}}}, 0)


TREE = st.lists(st.integers(0, 2), min_size=1, max_size=24)
SENDS = st.lists(st.tuples(TREE, st.floats(0, 3), st.sampled_from(["runs", "computed", "refused"])), max_size=12)


@given(SENDS, TREE, st.floats(0, 5))
def test_expectations_are_what_a_plain_list_of_prompts_says(
    sends: list[tuple[list[int], float, str]], asked: list[int], later: float
) -> None:
    """Whatever was sent when and ended how, the longest prefix shared with a prompt that is still expected counts."""
    known, now, plain = hits(0), 0.0, list[tuple[list[int], float]]()
    for number, (tokens, pause, fate) in enumerate(sends):
        now += pause
        known.sent(str(number), 0, prompt(tokens), now)
        if fate == "runs":
            plain.append((tokens, now + EXPECTED_S))
        else:
            known.ended(str(number), now, computed=fate == "computed")
            plain.append((tokens, now + 0.1 if fate == "computed" else now))
    now += later
    wanted = prompt(asked)
    alive = [prompt(tokens).chain.hashes for tokens, end in plain if end > now]
    shared = [sum(a == b for a, b in zip(blocks, wanted.chain.hashes, strict=False)) for blocks in alive]
    assert known.held(wanted, [0], now) == [min(BLOCK * max(shared, default=0), wanted.reusable)]
