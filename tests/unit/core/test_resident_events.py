"""Whatever engines report, in whatever order and with whatever losses, the index says what a naive model says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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

Path = tuple[str, tuple[tuple[int, int], ...]]
NAMES: st.SearchStrategy[EngineHash] = st.sampled_from([2**64 - 1, -5, 3, b"\x03", b"x" * 32])
TIERS = st.sampled_from([Tier.GPU, Tier.GPU, Tier.CPU, Tier.DISK])


class Naive:
    """One engine as its reports tell: names with their meaning and copies, tier by tier, in plain dictionaries."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be a new process of which nothing was heard."""
        self.is_known, self.is_complete, self.is_waiting = False, True, False
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
        self.is_known = True
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

    def _stored(self, event: BlocksStored) -> None:
        if event.parent is None:
            above: Path = (event.adapter, ())
        else:
            known = [self.names[tier][event.parent][0] for tier in Tier if event.parent in self.names[tier]]
            known += [self.doubted[event.parent]] if event.parent in self.doubted else []
            if not known:
                return
            above = known[0]
        names = self.names[event.tier]
        for place, name in enumerate(event.hashes):
            above = (above[0], (*above[1], tuple(event.tokens[place * SIZE : (place + 1) * SIZE])))  # type: ignore[assignment]
            before, copies = names.get(name, (above, 0))
            names[name] = above, copies + 1 if before == above else 1

    def held(self, adapter: str, prompt: Sequence[tuple[int, int]]) -> int | None:
        """Return the tokens held of a prompt."""
        if not self.is_known or self.is_waiting:
            return None
        total = 0.0
        for depth in range(1, len(prompt) + 1):
            path = (adapter, tuple(prompt[:depth]))
            tier = next((t for t in Tier if path in [known for known, _ in self.names[t].values()]), None)
            if tier is None:
                break
            total += WEIGHTS[tier]
        return int(total * SIZE) if total or self.is_complete else None


class Engine:
    """One engine: what it has sent since its start, and what of that has arrived."""

    def __init__(self, feed: KvFeed) -> None:
        self.feed = feed
        self.model = Naive()
        self.sent: list[Batch] = []
        self.arrived = -1
        self.last_of_before: int | None = None

    def send(self, events: Sequence[KvEvent], *, arrives: bool, answers: bool) -> None:
        """Send a batch that arrives or not; what is missing before it is had again or not."""
        number = len(self.sent)
        self.sent.append(Batch(events))
        # That a process is new can be told as long as its numbers have not passed those of the one before.
        if not arrives and number != self.last_of_before:
            return
        if self.last_of_before is not None:
            self.model.begin()
            self.last_of_before = None
        first = self.feed.missing(number)
        assert first == (None if self.arrived == number - 1 else self.arrived + 1)
        if first is not None:
            assert self.feed.is_waiting
            for missed in range(first, number) if answers else ():
                self.feed.replayed(missed, self.sent[missed])
                self._model(self.sent[missed])
            if not answers:
                self.model.doubt()
        self.feed.receive(number, self.sent[-1])
        self._model(self.sent[-1])
        self.arrived = number

    def _model(self, batch: Batch) -> None:
        for event in batch.events:
            self.model.apply(event)

    def restart(self) -> None:
        """Begin anew, with an empty cache and numbers from 0."""
        if self.last_of_before is None and self.arrived >= 0:
            self.last_of_before = self.arrived
        self.sent, self.arrived = [], -1


class ResidentIndexMachine(RuleBasedStateMachine):
    """Stored, removed, cleared, gaps with and without an answer, restarts, in any order on two engines."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ResidentIndex()
        self.engines = [Engine(self.index.feed(slot, weights=WEIGHTS)) for slot in SLOTS]
        self.hasher = TokenHasher(SIZE)

    @rule(
        slot=st.sampled_from(SLOTS),
        names=st.lists(NAMES, min_size=1, max_size=3),
        parent=st.none() | NAMES,
        blocks=st.lists(st.sampled_from(BLOCKS), min_size=3, max_size=3),
        adapter=st.sampled_from(["", "a"]),
        tier=TIERS,
        arrives=st.booleans(),
        answers=st.booleans(),
    )
    def stored(
        self,
        slot: int,
        names: list[EngineHash],
        parent: EngineHash | None,
        blocks: list[tuple[int, int]],
        adapter: str,
        tier: Tier,
        arrives: bool,
        answers: bool,
    ) -> None:
        """Store blocks after a parent that is known, doubted, or never heard of."""
        tokens = [token for block in blocks[: len(names)] for token in block]
        event = BlocksStored(hashes=names, tokens=tokens, block_tokens=SIZE, parent=parent, adapter=adapter, tier=tier)
        self.engines[slot].send([event], arrives=arrives, answers=answers)

    @rule(
        slot=st.sampled_from(SLOTS),
        names=st.lists(NAMES, min_size=1, max_size=3),
        tier=TIERS,
        arrives=st.booleans(),
        answers=st.booleans(),
    )
    def removed(self, slot: int, names: list[EngineHash], tier: Tier, arrives: bool, answers: bool) -> None:
        """Give up copies, of blocks that are there or not."""
        self.engines[slot].send([BlocksRemoved(names, tier)], arrives=arrives, answers=answers)

    @rule(slot=st.sampled_from(SLOTS), arrives=st.booleans(), answers=st.booleans())
    def cleared(self, slot: int, arrives: bool, answers: bool) -> None:
        """Empty the cache."""
        self.engines[slot].send([AllCleared()], arrives=arrives, answers=answers)

    @rule(slot=st.sampled_from(SLOTS))
    def restarted(self, slot: int) -> None:
        """Begin anew."""
        self.engines[slot].restart()

    @rule(most=st.integers(0, 3))
    def tidied(self, most: int) -> None:
        """Take back some memory; nothing else may change."""
        self.index.tidy(most)

    @invariant()
    def says_what_the_model_says(self) -> None:
        """Ask for every prompt there is."""
        for adapter, prompt in PROMPTS:
            chain = self.hasher.chain([token for block in prompt for token in block], adapter)
            expected = [engine.model.held(adapter, prompt) for engine in self.engines]
            assert self.index.tokens_held(chain, SLOTS) == expected

    def teardown(self) -> None:
        """Nothing is left once all are gone, and every row is free again."""
        for slot in SLOTS:
            self.index.remove(slot)
        while self.index.tidy(100):
            pass
        assert (len(self.index), self.index._table.open()) == (0, 0)


TestResidentIndex = ResidentIndexMachine.TestCase
TestResidentIndex.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
