"""Whatever engines report, in whatever order and with whatever losses, the index says what a naive model says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ext_proc.core.kv_events import AllCleared, Batch, BlocksRemoved, BlocksStored, EngineHash, KvEvent, Tier
from ext_proc.core.kv_feed import KvFeed
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher

SIZE = 2
BLOCKS = ((1, 2), (3, 4))
PROMPTS = [
    (adapter, prompt) for adapter in ("", "a") for prompt in itertools.product(BLOCKS, repeat=3)
]  # every prompt of three blocks
WEIGHTS = {Tier.GPU: 1.0, Tier.CPU: 0.5, Tier.DISK: 0.25, Tier.EXTERNAL: 0.0}
SLOTS = (0, 1)
RANKS = 2
"""Publishers of each engine; the first engine is told which of them is to answer, the second chooses by itself."""

Path = tuple[str, tuple[tuple[int, int], ...]]
NAMES: st.SearchStrategy[EngineHash] = st.sampled_from([2**64 - 1, -5, 3, b"\x03", b"x" * 32])
TIERS = st.sampled_from([Tier.GPU, Tier.GPU, Tier.CPU, Tier.DISK])
WAYS = st.fixed_dictionaries({"arrives": st.booleans(), "answers": st.booleans(), "kept": st.integers(0, 9)})


class Naive:
    """One rank as its reports tell: names with their meaning and copies, tier by tier, in plain dictionaries."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be a new process of which nothing was heard."""
        self.is_known, self.is_complete, self.is_waiting, self.has_begun = False, True, False, False
        self.doubted: dict[EngineHash, Path] = {}
        self.names: dict[Tier, dict[EngineHash, tuple[Path, int]]] = {tier: {} for tier in Tier}

    def doubt(self) -> None:
        """Believe nothing, but remember what names meant."""
        self.doubted = {}
        for tier in reversed(Tier):
            self.doubted |= {name: path for name, (path, _) in self.names[tier].items()}
        self.names = {tier: {} for tier in Tier}
        self.is_complete = False

    def apply(self, event: KvEvent) -> None:
        """Do what an event says."""
        self.is_known = self.has_begun = True
        if isinstance(event, AllCleared):
            self.names = {tier: {} for tier in Tier}
            self.doubted, self.is_complete = {}, True
        elif isinstance(event, BlocksRemoved):
            for name in event.hashes:
                path, copies = self.names[event.tier].pop(name, (("", ()), 0))
                if copies > 1:
                    self.names[event.tier][name] = path, copies - 1
        else:
            self._stored(event)

    def _meant(self, name: EngineHash) -> Path | None:
        known = [self.names[tier][name][0] for tier in Tier if name in self.names[tier]]
        return known[0] if known else self.doubted.get(name)

    def _stored(self, event: BlocksStored) -> None:
        # A copy in another tier is of what its name meant before, whatever else is told of it.
        paths = [self._meant(name) for name in event.hashes]
        if event.tier is Tier.GPU or None in paths:
            above = (event.adapter, ()) if event.parent is None else self._meant(event.parent)
            if above is None:
                return
            paths = []
            for place in range(len(event.hashes)):
                above = above[0], (*above[1], tuple(event.tokens[place * SIZE : (place + 1) * SIZE]))  # type: ignore[assignment]
                paths.append(above)
        names = self.names[event.tier]
        for name, path in zip(event.hashes, paths, strict=True):
            assert path is not None
            before, copies = names.get(name, (path, 0))
            names[name] = path, copies + 1 if before == path else 1

    def held(self, adapter: str, prompt: Sequence[tuple[int, int]]) -> float:
        """Return the blocks held of a prompt, those in far tiers by their weight."""
        total = 0.0
        for depth in range(1, len(prompt) + 1):
            path = (adapter, tuple(prompt[:depth]))
            tier = next((t for t in Tier if path in [known for known, _ in self.names[t].values()]), None)
            if tier is None:
                break
            total += WEIGHTS[tier]
        return total


def held(ranks: Sequence[Naive], adapter: str, prompt: Sequence[tuple[int, int]], *, is_pinned: bool) -> int | None:
    """Return the tokens that an engine holds of a prompt: its best rank's if all can be named, else their mean."""
    if any(rank.is_waiting for rank in ranks) or not any(rank.is_known for rank in ranks):
        return None
    of_each = [rank.held(adapter, prompt) for rank in ranks]
    if not any(of_each) and not all(rank.is_complete for rank in ranks if rank.has_begun):
        return None
    is_named = is_pinned and all(rank.is_known for rank in ranks)
    return int((max(of_each) if is_named else sum(of_each) / len(ranks)) * SIZE)


class Rank:
    """One publisher: what it has sent since its process began, and what of that has arrived.

    Args:
        feed: who is told.
        can_ask: whether messages can be asked for again.
    """

    def __init__(self, feed: KvFeed, *, can_ask: bool) -> None:
        self.feed = feed
        self.model = Naive()
        self.sent: list[Batch] = []
        self.arrived = -1
        self._can_ask = can_ask
        self._last_of_before: int | None = None
        self._is_cut = False

    def send(self, events: Sequence[KvEvent], *, arrives: bool, answers: bool, kept: int) -> None:
        """Send a batch that arrives or not; of what is missing before it the last ones may be had again, or none."""
        number = len(self.sent)
        # What the messages call the rank does not matter: the publisher's place says which it is.
        self.sent.append(Batch(events, rank=0))
        # Without a question, that a process is new can be told until its numbers have passed those of the one before.
        if not arrives and number != self._last_of_before:
            return
        if (self._is_cut and (self._can_ask or number != self.arrived + 1)) or self._last_of_before is not None:
            self._begin()
        self._is_cut, self._last_of_before = False, None
        first = self.feed.missing(number)
        assert first == (None if self.arrived == number - 1 else self.arrived + 1)
        if first is not None:
            assert self.feed.is_waiting
            self._replay(number if answers and self._can_ask else first, kept)
        if self.arrived < number - 1:
            self.model.doubt()
        self._arrive(number, is_live=True)

    def cut(self, *, answers: bool, kept: int) -> None:
        """Lose the connection, be connected again and, where that can be done, asked for what came meanwhile."""
        self.feed.reconnected(can_ask=self._can_ask)
        self._is_cut = True
        if not self._can_ask:
            return
        self.feed.asking()
        if answers:
            if self._last_of_before is not None:
                self.feed.restart()
                self._begin()
            self._is_cut, self._last_of_before = False, None
            self._replay(len(self.sent), kept)
            self.model.is_known = self.model.is_known or self.model.is_complete
        self.feed.asked(is_answered=answers)

    def restart(self, *, answers: bool, kept: int) -> None:
        """Begin anew, with an empty cache and numbers from 0, which cuts the connection."""
        if self._last_of_before is None:
            self._last_of_before = self.arrived
        self.sent, self.arrived = [], -1
        self.cut(answers=answers, kept=kept)
        self._is_cut = self._is_cut and self._can_ask

    def _begin(self) -> None:
        self.model.begin()
        self.arrived = -1

    def _replay(self, end: int, kept: int) -> None:
        """Answer with what has not arrived up to a number, of which only so many messages are remembered."""
        for number in range(max(self.arrived + 1, end - kept), end):
            if number > self.arrived + 1:
                self.model.doubt()
            self._arrive(number, is_live=False)

    def _arrive(self, number: int, *, is_live: bool) -> None:
        batch = self.sent[number]
        (self.feed.receive if is_live else self.feed.replayed)(number, batch)
        for event in batch.events:
            self.model.apply(event)
        self.arrived = number


class ResidentIndexMachine(RuleBasedStateMachine):
    """Stored, removed, cleared, gaps with whole, partial and no answers, cuts and restarts, in any order.

    On the two ranks of two engines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = ResidentIndex()
        self.engines = [
            [
                Rank(self.index.feed(slot, rank, WEIGHTS, is_pinned=slot == 0), can_ask=rank == 0)
                for rank in range(RANKS)
            ]
            for slot in SLOTS
        ]
        self.hasher = TokenHasher(SIZE)

    @rule(
        slot=st.sampled_from(SLOTS),
        ranks=st.sampled_from([(0,), (1,), (0, 1)]),
        names=st.lists(NAMES, min_size=1, max_size=3),
        parent=st.none() | NAMES,
        blocks=st.lists(st.sampled_from(BLOCKS), min_size=3, max_size=3),
        adapter=st.sampled_from(["", "a"]),
        tier=TIERS,
        way=WAYS,
    )
    def stored(
        self,
        slot: int,
        ranks: tuple[int, ...],
        names: list[EngineHash],
        parent: EngineHash | None,
        blocks: list[tuple[int, int]],
        adapter: str,
        tier: Tier,
        way: dict[str, Any],
    ) -> None:
        """Store blocks after a parent that is known, doubted, or never heard of; perhaps the same on all ranks."""
        tokens = [token for block in blocks[: len(names)] for token in block]
        event = BlocksStored(hashes=names, tokens=tokens, block_tokens=SIZE, parent=parent, adapter=adapter, tier=tier)
        for rank in ranks:
            self.engines[slot][rank].send([event], **way)

    @rule(
        slot=st.sampled_from(SLOTS),
        rank=st.integers(0, RANKS - 1),
        names=st.lists(NAMES, min_size=1, max_size=3),
        tier=TIERS,
        way=WAYS,
    )
    def removed(self, slot: int, rank: int, names: list[EngineHash], tier: Tier, way: dict[str, Any]) -> None:
        """Give up copies, of blocks that are there or not."""
        self.engines[slot][rank].send([BlocksRemoved(names, tier)], **way)

    @rule(slot=st.sampled_from(SLOTS), rank=st.integers(0, RANKS - 1), way=WAYS)
    def cleared(self, slot: int, rank: int, way: dict[str, Any]) -> None:
        """Empty the cache."""
        self.engines[slot][rank].send([AllCleared()], **way)

    @rule(slot=st.sampled_from(SLOTS), rank=st.integers(0, RANKS - 1), answers=st.booleans(), kept=st.integers(0, 9))
    def cut(self, slot: int, rank: int, answers: bool, kept: int) -> None:
        """Lose the connection, and ask when it is there again."""
        self.engines[slot][rank].cut(answers=answers, kept=kept)

    @rule(slot=st.sampled_from(SLOTS), answers=st.booleans(), kept=st.integers(0, 9))
    def restarted(self, slot: int, answers: bool, kept: int) -> None:
        """Begin anew, all ranks together."""
        for rank in self.engines[slot]:
            rank.restart(answers=answers, kept=kept)

    @rule(most=st.integers(0, 3))
    def tidied(self, most: int) -> None:
        """Take back some memory; nothing else may change."""
        self.index.tidy(most)

    @invariant()
    def says_what_the_model_says(self) -> None:
        """Ask for every prompt there is."""
        models = [[rank.model for rank in ranks] for ranks in self.engines]
        for adapter, prompt in PROMPTS:
            chain = self.hasher.chain([token for block in prompt for token in block], adapter)
            expected = [held(of_slot, adapter, prompt, is_pinned=slot == 0) for slot, of_slot in enumerate(models)]
            assert self.index.tokens_held(chain, SLOTS) == expected
            by_rank = [int(model.held(adapter, prompt) * SIZE) for model in models[0]]
            assert self.index.tokens_by_rank(chain, 0) == by_rank

    def teardown(self) -> None:
        """Nothing is left once all are gone, and every row is free again."""
        for slot in SLOTS:
            self.index.remove(slot)
        while self.index.tidy(100):
            pass
        assert (len(self.index), self.index._table.open()) == (0, 0)


TestResidentIndex = ResidentIndexMachine.TestCase
TestResidentIndex.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
