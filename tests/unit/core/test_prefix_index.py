"""Which endpoint holds which prefix."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.core.prefix_index import ObservedIndex

SLOTS = st.integers(0, 3)
PROMPTS = st.text("ab", min_size=1, max_size=7)
BOUND = 9


def _chain(prompt: str) -> list[int]:
    """Hash as the hasher does: a block's hash stands for all that comes before it."""
    return [int.from_bytes(prompt[: end + 1].encode()) for end in range(len(prompt))]


def _index(*slots: int, capacity: int | None = None, max_blocks: int = 1000) -> ObservedIndex:
    index = ObservedIndex(lambda _: 10, max_blocks=max_blocks, default_capacity=100_000)
    for slot in slots:
        index.add(slot, capacity)
    return index


def test_depth_is_the_longest_common_prefix() -> None:
    """Each slot is listed with the leading blocks it holds; a slot that holds none is not."""
    index = _index(0, 1, 2)
    index.learn(0, _chain("abab"))
    index.learn(1, _chain("abb"))
    assert index.match(_chain("ababab")) == {0: 4, 1: 2}


def test_depth_is_returned_in_the_measure_asked_for() -> None:
    """Leading blocks are turned into whatever the caller counts in."""
    index = _index(70)
    index.learn(70, _chain("abab"))
    assert index.match(_chain("aba"), lambda blocks: 16 * blocks) == {70: 48}


def test_learning_tells_what_was_held_before() -> None:
    """The number of leading blocks that were there already tells a later correction where to begin."""
    index = _index(0)
    assert index.learn(0, _chain("ab")) == 0
    assert index.learn(0, _chain("abab")) == 2
    assert index.learn(0, _chain("ab")) == 2


def test_an_unknown_slot_learns_nothing() -> None:
    """An endpoint that is gone leaves no trace, however late something speaks of it."""
    index = _index(0)
    assert index.learn(5, _chain("ab")) == 0
    index.forget(5, _chain("ab"))
    index.remove(5)
    assert (len(index), index.blocks(5), index.match(_chain("ab"))) == (0, 0, {})


def test_forgetting_leaves_no_gap_uncounted() -> None:
    """A slot that keeps later blocks of a prompt without the earlier ones is not said to hold the prompt."""
    index = _index(0)
    fresh = index.learn(0, _chain("aaaabbb"))
    index.learn(0, _chain("aaaabbbaaaaaaaaaa"))
    index.forget(0, _chain("aaaabbb")[fresh:])
    index.learn(0, _chain("aaaa"))
    assert index.match(_chain("aaaabbbaaaaaaaaaa")) == {0: 4}


def test_the_ends_of_old_prompts_go_first() -> None:
    """Over its capacity an endpoint loses the last blocks of what was used longest ago."""
    index = _index(0, capacity=60)
    index.learn(0, _chain("aaaa"))
    index.learn(0, _chain("bbbb"))
    assert index.match(_chain("aaaa")) == {0: 2}
    assert index.match(_chain("bbbb")) == {0: 4}


def test_a_prompt_beyond_capacity_keeps_its_beginning() -> None:
    """Of a prompt that does not fit, the leading blocks that fit are remembered."""
    index = _index(0, capacity=50)
    index.learn(0, _chain("abababab"))
    assert index.match(_chain("abababab")) == {0: 5}


def test_a_smaller_capacity_counts_at_once() -> None:
    """When an endpoint turns out to be smaller, what cannot be there is forgotten."""
    index = _index(0)
    index.learn(0, _chain("abababab"))
    index.add(0, 30)
    assert index.match(_chain("abababab")) == {0: 3}


def test_the_bound_holds_when_endpoints_join() -> None:
    """Endpoints that join later get their share from those that hold more than theirs."""
    index = _index(0, max_blocks=8)
    index.learn(0, _chain("aaaaaaaa"))
    index.add(1)
    index.learn(1, _chain("bbbb"))
    assert (index.blocks(0), index.blocks(1)) == (4, 4)


def test_i05_unique_prompts_do_not_grow_the_index() -> None:
    """However many prompts come, no more blocks are held than the bound."""
    generator = random.Random(1)
    index = _index(*range(3), max_blocks=300)
    for number in range(1000):
        index.learn(number % 3, [generator.getrandbits(64) for _ in range(32)])
    assert len(index) <= 300
    assert sum(map(index.blocks, range(3))) <= 300


@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 5)), min_size=1, max_size=30))
def test_hundreds_of_slots_keep_their_own_depths(taught: list[tuple[int, int]]) -> None:
    """Slots far beyond the width of a machine word do not disturb each other."""
    index = _index(*{slot for slot, _ in taught})
    chain = _chain("ababa")
    expected: dict[int, int] = {}
    for slot, depth in taught:
        index.learn(slot, chain[:depth])
        expected[slot] = max(depth, expected.get(slot, 0))
    assert index.match(chain) == expected


class NaiveIndex:
    """Every slot's blocks in a list, least recently used first; bounds are enforced as the index promises."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.capacity: dict[int, int] = {}

    def learn(self, slot: int, chain: list[int]) -> None:
        """Touch the chain from its end to its beginning."""
        if slot not in self.held:
            return
        self.held[slot] = [block for block in self.held[slot] if block not in chain] + chain[::-1]
        self.shrink(slot)

    def shrink(self, slot: int) -> None:
        """Drop the oldest beyond capacity, then whatever is over the common bound."""
        blocks = self.held[slot]
        del blocks[: max(len(blocks) - self.capacity[slot] // 10, 0)]
        while sum(map(len, self.held.values())) > BOUND:
            over = [s for s in (slot, *self.held) if len(self.held[s]) > BOUND // len(self.held)]
            victim = slot if over[0] == slot else max(self.held, key=lambda s: len(self.held[s]))
            slot = victim
            del self.held[victim][0]

    def depth(self, slot: int, chain: list[int]) -> int:
        """Count leading blocks one by one."""
        missing = (place for place, block in enumerate(chain) if block not in self.held[slot])
        return next(missing, len(chain))


class IndexMachine(RuleBasedStateMachine):
    """The index against the naive one."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ObservedIndex(lambda _: 10, max_blocks=BOUND, default_capacity=100)
        self.naive = NaiveIndex()

    @rule(slot=SLOTS, capacity=st.sampled_from([None, 30, 70]))
    def add(self, slot: int, capacity: int | None) -> None:
        """Add a slot, or change its capacity."""
        self.index.add(slot, capacity)
        self.naive.held.setdefault(slot, [])
        self.naive.capacity[slot] = capacity or 100
        self.naive.shrink(slot)

    @rule(slot=SLOTS)
    def remove(self, slot: int) -> None:
        """Remove a slot, known or not."""
        self.index.remove(slot)
        self.naive.held.pop(slot, None)

    @rule(slot=SLOTS, prompt=PROMPTS)
    def learn(self, slot: int, prompt: str) -> None:
        """Learn a prompt and compare what is said to have been there."""
        chain = _chain(prompt)
        before = self.naive.depth(slot, chain) if slot in self.naive.held else 0
        assert self.index.learn(slot, chain) == before
        self.naive.learn(slot, chain)

    @rule(slot=SLOTS, prompt=PROMPTS, start=st.integers(0, 6))
    def forget(self, slot: int, prompt: str, start: int) -> None:
        """Forget the end of a prompt, whether it is held or not."""
        chain = _chain(prompt)[start:]
        self.index.forget(slot, chain)
        if slot in self.naive.held:
            self.naive.held[slot] = [block for block in self.naive.held[slot] if block not in chain]

    @precondition(lambda self: self.naive.held)
    @rule(prompt=PROMPTS)
    def match(self, prompt: str) -> None:
        """Compare all depths: never more than is held, never less."""
        chain = _chain(prompt)
        expected = {slot: self.naive.depth(slot, chain) for slot in self.naive.held}
        assert self.index.match(chain) == {slot: depth for slot, depth in expected.items() if depth}

    @rule(prompt=PROMPTS)
    def a_longer_prompt_matches_no_less(self, prompt: str) -> None:
        """Blocks added at the end take nothing from any slot's depth."""
        chain = _chain(prompt)
        shorter, longer = self.index.match(chain[:-1]), self.index.match(chain)
        assert all(depth <= longer[slot] for slot, depth in shorter.items())

    @invariant()
    def sizes_agree(self) -> None:
        """Counts of blocks agree and stay within their bounds."""
        held = self.naive.held
        assert {slot: self.index.blocks(slot) for slot in held} == {slot: len(held[slot]) for slot in held}
        assert len(self.index) == len(set().union(*held.values())) <= BOUND


TestIndexMachine = IndexMachine.TestCase
