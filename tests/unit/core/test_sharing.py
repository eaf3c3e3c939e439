"""What requests in flight have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.sharing import Sharing

CHAINS = ((), (1,), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 6), (7, 8), (7, 8, 9))
"""Chains of a few prompts; a block stands in one place only, as its hash holds all before it."""


def _measure(blocks: int) -> int:
    """Measure blocks that grow along the prompt: 10, 20, 30 and so on."""
    return 5 * blocks * (blocks + 1)


def _counted_again(running: Sequence[Sequence[int]]) -> int:
    users = Counter(block for chain in running for block in chain)
    sizes = {block: 10 * (place + 1) for chain in CHAINS for place, block in enumerate(chain)}
    return sum((count - 1) * sizes[block] for block, count in users.items())


def test_what_two_begin_with_is_counted_again_once() -> None:
    """Of three requests with a common beginning two have it for nothing, whichever of them ends first."""
    sharing = Sharing(_measure, 1.0)
    for chain in ((1, 2, 3), (1, 2, 6), (1, 2, 3, 4, 5)):
        sharing.begin(chain, 1.0)
    assert sharing.tokens == 30 + 60
    sharing.end((1, 2, 3))
    assert sharing.tokens == 30
    sharing.end((1, 2, 3, 4, 5))
    assert sharing.tokens == 0


def test_a_new_prompt_has_in_common_what_is_in_flight() -> None:
    """It is as long as the beginning that any of them has, in the engine's tokens."""
    sharing = Sharing(_measure, 0.5)
    assert sharing.common((1, 2, 3)) == 0
    sharing.begin((1, 2, 6), 0.5)
    assert [sharing.common(chain) for chain in ((1, 2, 3), (1, 2, 6), (7, 8), ())] == [15, 30, 0, 0]


def test_the_scale_follows_what_is_learnt_and_leaves_nothing_behind() -> None:
    """Prompts that came before it was learnt count by it too, and none are left when all have ended."""
    sharing = Sharing(_measure, 1.0)
    for _ in range(400):
        sharing.begin((1, 2, 3), 0.5)
    assert sharing.tokens == pytest.approx(399 * 60 * 0.5, rel=0.01)
    for _ in range(400):
        sharing.end((1, 2, 3))
    assert (sharing.tokens, len(sharing)) == (0, 0)


def test_prompts_that_share_nothing_say_nothing_of_the_scale() -> None:
    """Short prompts, of which the chat template makes ten times as many tokens, make what others share no longer."""
    sharing = Sharing(_measure, 1.0)
    for chain in ((1, 2, 3), (1, 2, 3)):
        sharing.begin(chain, 1.0)
    for _ in range(100):
        sharing.begin((), 10.0)
        sharing.begin((7, 8), 10.0)
        sharing.end((7, 8))
    assert sharing.tokens == 60


def test_an_end_of_somebody_unknown_changes_nothing() -> None:
    """Counts never fall below zero."""
    sharing = Sharing(_measure, 1.0)
    sharing.end((1, 2))
    sharing.begin((1, 2), 1.0)
    sharing.end((7, 8))
    assert (sharing.tokens, len(sharing)) == (0, 2)


@given(st.lists(st.tuples(st.sampled_from(CHAINS), st.booleans()), max_size=200))
def test_it_counts_what_a_list_of_requests_counts(steps: list[tuple[Sequence[int], bool]]) -> None:
    """In whatever order requests come and go, the sum is that over the requests, and in the end nothing is left."""
    sharing, running = Sharing(_measure, 1.0), list[Sequence[int]]()
    for chain, comes in steps:
        if comes:
            sharing.begin(chain, 1.0)
            running.append(chain)
        elif chain in running:
            sharing.end(chain)
            running.remove(chain)
        assert sharing.tokens == _counted_again(running)
        assert len(sharing) == len({block for each in running for block in each})
    for chain in running:
        sharing.end(chain)
    assert (sharing.tokens, len(sharing)) == (0, 0)
