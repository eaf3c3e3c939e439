"""Which endpoint holds which prefix."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.core.prefix_index import ObservedIndex

SLOTS = st.integers(0, 3)
PROMPTS = st.text("ab", min_size=1, max_size=7)
BLOCK = 10
"""Tokens of a block in these tests."""

CAPACITY = 100
BOUND = 12


def _chain(prompt: str) -> list[int]:
    """Hash as the hasher does: a block's hash stands for all that comes before it."""
    return [int.from_bytes(prompt[: end + 1].encode()) for end in range(len(prompt))]


def _index(*slots: int, capacity: int | None = None, max_blocks: int = 1000) -> ObservedIndex:
    index = ObservedIndex(lambda blocks: BLOCK * blocks, max_blocks=max_blocks, default_capacity=100_000)
    for slot in slots:
        index.add(slot, capacity)
    return index


def test_depth_is_the_longest_common_prefix() -> None:
    """Each slot gets the number of leading blocks it holds, in the order asked for."""
    index = _index(0, 1, 2)
    index.learn(0, _chain("abab"))
    index.learn(1, _chain("abb"))
    assert index.depths(_chain("ababab"), [2, 1, 0]) == [0, 2, 4]


def test_an_unknown_slot_learns_nothing() -> None:
    """An endpoint that is gone leaves no trace, however late something speaks of it."""
    index = _index(0)
    stamp = index.learn(5, _chain("ab"))
    index.forget(5, _chain("ab"), 0, stamp)
    index.ended(5, _chain("ab"), 10)
    index.found(5, 1, 2)
    index.correct(5, 10, 20, 30)
    index.clear(5)
    index.remove(5)
    assert (len(index), index.blocks(5), index.capacity(5)) == (0, 0, 0)
    assert index.depths(_chain("ab"), [5]) == [0]


def test_only_what_a_prompt_added_is_taken_back() -> None:
    """Blocks that another prompt used in between stay, and no block is left behind one that went."""
    index = _index(0)
    stamp = index.learn(0, _chain("aaaabbb"))
    index.learn(0, _chain("aaaab"))
    index.forget(0, _chain("aaaabbb"), 0, stamp)
    index.learn(0, _chain("aaaa"))
    assert index.depths(_chain("aaaabbb"), [0]) == [5]


def test_what_was_used_longest_ago_expires_first() -> None:
    """Over its capacity an endpoint loses whole prompts, those first that nobody used since."""
    index = _index(0, capacity=130)
    for letter in "xyzx":
        index.learn(0, _chain(letter * 4))
    index.learn(0, _chain("aaaa"))
    index.learn(0, _chain("bbbb"))
    assert [index.depths(_chain(letter * 4), [0]) for letter in "xyzab"] == [[4], [0], [0], [4], [4]]


def test_what_is_used_again_and_again_takes_its_share_of_the_room() -> None:
    """A system prompt is never evicted, so what else is held is less by its size, and its own parts go by their use."""
    index = _index(0, capacity=100)
    for letter in "bcdefg":
        index.learn(0, _chain("aaaaaa" + letter))
    assert [index.depths(_chain("aaaaaa" + letter), [0])[0] for letter in "bcdefg"] == [6, 6, 7, 7, 7, 7]


def test_a_prompt_is_used_until_it_has_been_answered() -> None:
    """An engine keeps what it works on, so what ended last is evicted last, though it began first."""
    index = _index(0, capacity=100)
    for letter in "xyz":
        index.learn(0, _chain(letter * 3))
    index.ended(0, _chain("xxx"), 0)
    index.learn(0, _chain("aaa"))
    assert [index.depths(_chain(letter * 3), [0]) for letter in "xyza"] == [[3], [0], [3], [3]]


def test_a_prompt_that_expired_while_it_was_answered_is_held() -> None:
    """Its engine had no choice, and others went in its place."""
    index = _index(0, capacity=100)
    for letter in "xyzab":
        index.learn(0, _chain(letter * 3))
    index.ended(0, _chain("xxx"), 0)
    assert [index.depths(_chain(letter * 3), [0]) for letter in "xyzab"] == [[3], [0], [0], [3], [3]]


@pytest.mark.parametrize(("scale", "left"), [(1.0, [[0], [3], [3]]), (0.5, [[0], [0], [3]])])
def test_answers_fill_the_memory_too(scale: float, left: list[list[int]]) -> None:
    """What was generated takes as much room as a prompt of that length, counted as the index counts."""
    index = _index(0, capacity=int(100 * scale))
    index.scaled(0, scale)
    for letter in "xyz":
        index.learn(0, _chain(letter * 3))
    index.ended(0, _chain("zzz"), 30)
    assert [index.depths(_chain(letter * 3), [0]) for letter in "xyz"] == left


def test_what_should_have_expired_and_did_not_makes_an_engine_larger() -> None:
    """The further beyond its reach, the more; no further than reason."""
    index = _index(0, capacity=100)
    stamps = [index.learn(0, _chain(letter * 4)) for letter in "xyzab"]
    index.found(0, stamps[4] - 80, stamps[4])
    assert index.capacity(0) == 100
    index.found(0, stamps[4] - 123, stamps[4])
    assert index.capacity(0) == pytest.approx(150, abs=1)
    for _ in range(1000):
        index.found(0, 1, 1_000_000)
    assert index.capacity(0) == 300


def test_a_prompt_beyond_capacity_keeps_its_beginning() -> None:
    """Of a prompt that does not fit, the leading blocks that fit are remembered."""
    index = _index(0, capacity=50)
    index.learn(0, _chain("abababab"))
    assert index.depths(_chain("abababab"), [0]) == [5]


def test_a_smaller_capacity_counts_at_once() -> None:
    """When an endpoint turns out to be smaller, what cannot be there is forgotten."""
    index = _index(0)
    index.learn(0, _chain("aaaa"))
    index.learn(0, _chain("bbbb"))
    index.add(0, 40)
    assert [index.depths(_chain(letter * 4), [0]) for letter in "ab"] == [[0], [4]]


def test_what_expired_never_comes_back() -> None:
    """A capacity that grows again makes room for new prompts only."""
    index = _index(0)
    index.learn(0, _chain("aaaa"))
    index.learn(0, _chain("bbbb"))
    index.add(0, 40)
    index.add(0, 1000)
    assert index.depths(_chain("aaaa"), [0]) == [0]


def test_a_known_capacity_keeps_its_corrections() -> None:
    """Hearing the same stated capacity again does not undo what was learnt of it."""
    index = _index(0, capacity=100)
    index.correct(0, 50, 0, 50)
    index.add(0, 100)
    assert index.capacity(0) == 90


@pytest.mark.parametrize(
    ("predicted", "actual", "capacity"),
    [(500, 0, 950), (0, 500, 1050), (500, 495, 1000.5), (0, 0, 1000), (100, 100, 1000.5), (0, 2000, 1100)],
)
def test_reported_hits_correct_the_capacity(predicted: int, actual: int, capacity: float) -> None:
    """Too few hits shrink it by a tenth of the error, more grow it, a right prediction grows it a little."""
    index = _index(0, capacity=1000)
    index.correct(0, predicted, actual, 1000)
    assert index.capacity(0) == int(capacity)


def test_corrections_stay_within_reason() -> None:
    """No report takes the capacity below a fiftieth or above three times what was stated."""
    index = _index(0, 1, capacity=1000)
    for _ in range(1000):
        index.correct(0, 100, 0, 100)
        index.correct(1, 0, 100, 100)
    assert (index.capacity(0), index.capacity(1)) == (20, 3000)


def test_an_engine_that_counts_more_tokens_holds_less_text() -> None:
    """Where a text is twice the tokens that were estimated half as much of it fits; the capacity stays what it was."""
    index = _index(0, capacity=CAPACITY)
    for prompt in ("aaa", "bbb", "abb"):
        index.learn(0, _chain(prompt))
    assert index.depths(_chain("aaa"), [0]) == [3]
    index.scaled(0, 2.0)
    index.scaled(7, 2.0)
    assert index.capacity(0) == CAPACITY
    assert [index.depths(_chain(prompt), [0])[0] for prompt in ("aaa", "bbb", "abb")] == [1, 0, 3]
    index.learn(0, _chain("bababab"))
    assert index.depths(_chain("bababab"), [0]) == [5]


def test_clearing_forgets_the_content_and_keeps_the_slot() -> None:
    """An engine that restarted holds nothing and learns anew."""
    index = _index(0, 1)
    for slot in (0, 1):
        index.learn(slot, _chain("ab"))
    index.clear(0)
    assert (index.depths(_chain("ab"), [0, 1]), len(index)) == ([0, 2], 2)
    index.learn(0, _chain("ab"))
    assert index.depths(_chain("ab"), [0, 1]) == [2, 2]


def test_i05_unique_prompts_do_not_grow_the_index() -> None:
    """However many prompts come, no more blocks are held than the bound, and the newest are among them (I05)."""
    generator = random.Random(1)
    index = _index(*range(3), max_blocks=300)
    for number in range(1000):
        chain = [generator.getrandbits(64) for _ in range(32)]
        index.learn(number % 3, chain)
        assert index.depths(chain, [number % 3]) == [32]
        assert len(index) == sum(map(index.blocks, range(3))) <= 300


def test_a_prompt_of_more_blocks_than_the_bound_is_cut() -> None:
    """A single prompt cannot break the bound."""
    index = _index(0, max_blocks=5)
    index.learn(0, _chain("ababababab"))
    assert (len(index), index.depths(_chain("ababababab"), [0])) == (5, [5])


def test_expired_blocks_are_swept() -> None:
    """A table that keeps learning stays within a few times of what fits."""
    index = _index(0, capacity=1000, max_blocks=1_000_000)
    for number in range(10_000):
        index.learn(0, [hash((number, block)) for block in range(10)])
    assert index.blocks(0) <= 1024


def test_i05_short_answers_do_not_grow_the_index() -> None:
    """Prompts that repeat and get answers of a token leave no trace of each, and still evict in time (I05)."""
    index = _index(0, capacity=50_000)
    index.learn(0, _chain("old"))
    held, lasts = index._slots[0], 0
    for number in range(60_000):
        index.learn(0, _chain("classify"))
        index.ended(0, _chain("classify"), 1)
        lasts += index.depths(_chain("old"), [0]) == [3]
        assert len(held.last_used) <= 1025, number
    assert 49_600 < lasts < 50_000
    assert held.held == sum(held.last_used.values())


def test_i05_prompts_that_do_not_fit_leave_no_trace() -> None:
    """An engine that says that it has no room for a block is taught nothing, however often (I05)."""
    index = _index(0, capacity=BLOCK - 1)
    assert {index.learn(0, [number]) for number in range(100)} == {0}
    assert (index.depths([99], [0]), len(index._slots[0].last_used)) == ([0], 0)


@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 5)), min_size=1, max_size=30))
def test_hundreds_of_slots_keep_their_own_depths(taught: list[tuple[int, int]]) -> None:
    """Slots do not disturb each other, whatever the depth of the one that was looked at before."""
    slots = list(dict.fromkeys(slot for slot, _ in taught))
    index = _index(*slots)
    chain = _chain("ababa")
    expected: dict[int, int] = {}
    for slot, depth in taught:
        index.learn(slot, chain[:depth])
        expected[slot] = max(depth, expected.get(slot, 0))
    assert index.depths(chain, slots) == [expected[slot] for slot in slots]


class NaiveIndex:
    """The rule of the index without its speed: all stamps of a slot, and the tokens of answers by their stamp."""

    def __init__(self) -> None:
        self.stamps: dict[int, dict[int, int]] = {}
        self.answers: dict[int, dict[int, int]] = {}
        self.clock: dict[int, int] = {}
        self.floor: dict[int, int] = {}
        self.reach: dict[int, float] = {}
        self.capacity: dict[int, int] = {}

    def add(self, slot: int, capacity: int) -> None:
        """Add a slot or change its capacity."""
        self.stamps.setdefault(slot, {})
        self.answers.setdefault(slot, {})
        self.clock.setdefault(slot, 0)
        self.floor.setdefault(slot, 0)
        self.reach[slot] = self.reach.get(slot, capacity) * capacity / self.capacity.get(slot, capacity)
        self.capacity[slot] = capacity
        self.expire(slot)

    def remove(self, slot: int) -> None:
        """Remove a slot."""
        for part in (self.stamps, self.answers, self.clock, self.floor, self.reach, self.capacity):
            part.pop(slot, None)

    def clear(self, slot: int) -> None:
        """Forget the content of a slot."""
        if slot in self.stamps:
            self.stamps[slot], self.answers[slot] = {}, {}

    def times(self, slot: int) -> dict[int, int]:
        """Count the tokens of each time of last use that has not expired."""
        found: dict[int, int] = {}
        for stamp in self.stamps[slot].values():
            found[stamp] = found.get(stamp, 0) + BLOCK
        for stamp, tokens in self.answers[slot].items():
            found[stamp] = found.get(stamp, 0) + tokens
        return {stamp: tokens for stamp, tokens in found.items() if stamp > self.floor[slot]}

    def expire(self, slot: int) -> None:
        """Let the oldest go until the rest fits, but never the newest."""
        while sum((times := self.times(slot)).values()) > self.capacity[slot] and len(times) > 1:
            self.floor[slot] = min(times)
            self.reach[slot] = self.clock[slot] - self.floor[slot]

    def learn(self, slot: int, chain: list[int]) -> int:
        """Touch what fits of the chain."""
        if slot not in self.stamps:
            return 0
        kept = chain[: self.capacity[slot] // BLOCK]
        self.clock[slot] += 1 + BLOCK * max(len(kept) - self.depth(slot, chain), 0)
        self.stamps[slot].update(dict.fromkeys(kept, self.clock[slot]))
        self.expire(slot)
        return self.clock[slot]

    def ended(self, slot: int, chain: list[int], answer: int) -> None:
        """Touch it again unless that was a moment ago, and keep the answer beside it."""
        if slot not in self.stamps:
            return
        used = self.stamps[slot].get(chain[-1], 0)
        if used <= self.floor[slot] or self.clock[slot] - used > self.reach[slot] / 64:
            self.learn(slot, chain)
        answers, clock = self.answers[slot], self.clock[slot]
        answers[clock] = answers.get(clock, 0) + answer
        self.expire(slot)

    def forget(self, slot: int, blocks: list[int], stamp: int) -> None:
        """Take back what was not used since."""
        held = self.stamps.get(slot, {})
        self.stamps[slot] = {b: s for b, s in held.items() if b not in blocks or s > stamp}

    def depth(self, slot: int, chain: list[int]) -> int:
        """Count leading blocks one by one."""
        held, floor = self.stamps.get(slot, {}), self.floor.get(slot, 0)
        missing = (place for place, block in enumerate(chain) if held.get(block, 0) <= floor)
        return next(missing, len(chain))


class IndexMachine(RuleBasedStateMachine):
    """The index against the naive one."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ObservedIndex(lambda blocks: BLOCK * blocks, max_blocks=1000, default_capacity=CAPACITY)
        self.naive = NaiveIndex()
        self.learnt: list[tuple[int, list[int], int, int]] = []

    @rule(slot=SLOTS, capacity=st.sampled_from([None, 30, 70]))
    def add(self, slot: int, capacity: int | None) -> None:
        """Add a slot, or change its capacity."""
        self.index.add(slot, capacity)
        self.naive.add(slot, capacity or CAPACITY)

    @rule(slot=SLOTS)
    def remove(self, slot: int) -> None:
        """Remove a slot, known or not."""
        self.index.remove(slot)
        self.naive.remove(slot)
        self.learnt = [learnt for learnt in self.learnt if learnt[0] != slot]

    @rule(slot=SLOTS)
    def clear(self, slot: int) -> None:
        """Forget the content of a slot."""
        self.index.clear(slot)
        self.naive.clear(slot)

    @rule(slot=SLOTS, prompt=PROMPTS, told=st.booleans())
    def learn(self, slot: int, prompt: str, *, told: bool) -> None:
        """Learn a prompt, with the depth that was looked up before or without."""
        chain = _chain(prompt)
        depth = self.index.depths(chain, [slot])[0]
        stamp = self.index.learn(slot, chain, depth) if told else self.index.learn(slot, chain)
        assert stamp == self.naive.learn(slot, chain)
        if stamp:
            self.learnt.append((slot, chain, depth, stamp))

    @precondition(lambda self: self.learnt)
    @rule(place=st.integers(0, 1000))
    def take_back(self, place: int) -> None:
        """Take back what a prompt added, at any time after."""
        slot, chain, depth, stamp = self.learnt.pop(place % len(self.learnt))
        self.index.forget(slot, chain, depth, stamp)
        self.naive.forget(slot, chain[depth:], stamp)

    @rule(slot=SLOTS, prompt=PROMPTS, answer=st.integers(0, 40))
    def end(self, slot: int, prompt: str, answer: int) -> None:
        """End a prompt, which may have expired meanwhile, or never have been learnt."""
        self.index.ended(slot, _chain(prompt), answer)
        self.naive.ended(slot, _chain(prompt), answer)

    @rule(prompt=PROMPTS, slots=st.permutations(range(4)))
    def look_up(self, prompt: str, slots: list[int]) -> None:
        """Compare all depths: never more than is held, never less, in any order of the slots."""
        chain = _chain(prompt)
        assert self.index.depths(chain, slots) == [self.naive.depth(slot, chain) for slot in slots]

    @invariant()
    def nothing_stands_behind_a_gap(self) -> None:
        """Along any chain, what is held is a prefix of it: the look-up may search by halves."""
        for slot, held in self.naive.stamps.items():
            floor = self.naive.floor[slot]
            live = {block for block, stamp in held.items() if stamp > floor}
            for block in live:
                text = block.to_bytes((block.bit_length() + 7) // 8).decode()
                assert set(_chain(text)) <= live


class BoundedMachine(RuleBasedStateMachine):
    """The index under a bound that is much too small."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ObservedIndex(lambda blocks: BLOCK * blocks, max_blocks=BOUND, default_capacity=10_000)
        for slot in range(4):
            self.index.add(slot)

    @rule(slot=SLOTS, prompt=PROMPTS)
    def learn(self, slot: int, prompt: str) -> None:
        """The newest prompt is always held, whatever had to go for it."""
        self.index.learn(slot, _chain(prompt))
        assert self.index.depths(_chain(prompt), [slot]) == [len(prompt)]

    @invariant()
    def sizes_agree(self) -> None:
        """The total is the sum of the slots and within its bound."""
        assert len(self.index) == sum(map(self.index.blocks, range(4))) <= BOUND


def test_less_than_a_block_more_is_what_was_predicted() -> None:
    """An engine that counts in finer steps than our blocks does not make its cache look larger."""
    index = _index(0, 1, capacity=1000)
    for _ in range(100):
        index.correct(0, 500, 590, 1000, slack=100)
        index.correct(1, 500, 600, 1000, slack=100)
    assert index.capacity(0) < 1060
    assert index.capacity(1) > 2000


TestIndexMachine = IndexMachine.TestCase
TestBoundedMachine = BoundedMachine.TestCase
