"""Which endpoint holds which block, as the engines themselves report it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from ext_proc.core.block_table import BlockTable, Runs
from ext_proc.core.engine_cache import EngineCache
from ext_proc.core.kv_events import Tier
from ext_proc.core.kv_feed import KvFeed, believed
from ext_proc.core.model import BlockHash
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.token_chain import TokenChain

_MOST_PLANS = 64

EVERY_TIER_COUNTS: Mapping[Tier, float] = MappingProxyType(dict.fromkeys(Tier, 1.0))


class _Reporter(msgspec.Struct):
    """An endpoint that reports: by events, or in our own names of blocks."""

    weights: Sequence[float]
    feeds: list[KvFeed]
    cache: EngineCache | None = None
    is_pinned: bool = False

    @property
    def names_ranks(self) -> bool:
        """Whether requests say which rank is to answer; a rank that was not heard may not exist, and be refused."""
        return self.is_pinned and all(feed.is_heard for feed in self.feeds)

    def caches(self) -> list[EngineCache] | None:
        return [self.cache] if self.cache is not None else believed(self.feeds)

    def tokens(self, caches: Sequence[EngineCache], runs: Runs, size: int) -> int | None:
        """Return the tokens of a prompt that its caches hold; None where they may hold more."""
        held = [self._blocks(cache, runs) for cache in caches]
        if not any(held) and not all(cache.is_complete for cache in caches):
            return None
        if self.names_ranks:
            return int(max(held, default=0.0) * size)
        return int(sum(held) * size / max(len(caches), len(self.feeds), 1))

    def by_rank(self, runs: Runs, size: int) -> list[int]:
        """Return the tokens of a prompt that the caches of each publisher hold, in the order of their ports."""
        return [
            int(max((self._blocks(cache, runs) for cache in feed.caches.values()), default=0.0) * size)
            for feed in self.feeds
        ]

    def _blocks(self, cache: EngineCache, runs: Runs) -> float:
        return sum(run * weight for run, weight in zip(runs.get(cache.row, ()), self.weights, strict=False))


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """How some slots are asked for blocks of one size.

    Attributes:
        caches: of each slot; None if it cannot tell.
        rows: all of them, one bit each.
        simple: where each slot has one cache at most: its row, or -1, and what the slot holds if that row holds none.
    """

    caches: Sequence[Sequence[EngineCache] | None]
    rows: int
    simple: Sequence[tuple[int, int | None]] | None

    @classmethod
    def of(cls, caches: Sequence[Sequence[EngineCache] | None], reporters: Sequence[_Reporter | None]) -> _Plan:
        """Make the plan for the caches of each slot."""
        rows = _mask(cache for of_slot in caches for cache in of_slot or ())
        simple: list[tuple[int, int | None]] = []
        for of_slot, reporter in zip(caches, reporters, strict=True):
            if of_slot is None or reporter is None:
                simple.append((-1, None))
            elif not of_slot:
                simple.append((-1, 0))
            elif len(of_slot) == 1 and len(reporter.feeds) <= 1:
                simple.append((of_slot[0].row, 0 if of_slot[0].is_complete else None))
            else:
                return cls(caches, rows, None)
        return cls(caches, rows, simple)


class ResidentIndex:
    """Blocks by endpoint slot, with a count of their physical copies.

    A slot is in the index while its reports are believed: once something was reported, and not while a part of the
    reports is missing and has been asked for. If it is lost, what was held before is not believed any more.
    """

    def __init__(self) -> None:
        self._table = BlockTable()
        self._reporters: dict[int, _Reporter] = {}
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._planned = 0

    def __contains__(self, slot: int) -> bool:
        """Tell whether an engine reports what it holds, and is believed at the moment."""
        return self._caches(slot) is not None

    def add(self, slot: int, block_tokens: int | None = None) -> None:
        """Believe reports of an engine in our own names of blocks; blocks that are tokens have a size."""
        if slot not in self._reporters:
            cache = EngineCache(self._table)
            cache.block_tokens = block_tokens
            self._reporters[slot] = _Reporter([EVERY_TIER_COUNTS[tier] for tier in Tier], [], cache)

    def feed(
        self,
        slot: int,
        rank: int = 0,
        weights: Mapping[Tier, float] = EVERY_TIER_COUNTS,
        *,
        is_pinned: bool = False,
    ) -> KvFeed:
        """Begin to listen to a publisher of an engine's events; it is known once something comes.

        Args:
            slot: the engine; several publishers of one add up.
            rank: data-parallel rank of events that do not say.
            weights: what a cached token in a tier counts, 1 for a whole one.
            is_pinned: whether requests say which rank is to answer.
        """
        reporter = self._reporters.setdefault(slot, _Reporter([], []))
        reporter.is_pinned = is_pinned
        reporter.weights = [weights[tier] for tier in Tier]
        feed = KvFeed(self._table, rank)
        reporter.feeds.append(feed)
        self._table.revision += 1
        return feed

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        reporter = self._reporters.pop(slot, None)
        if reporter is None:
            return
        self._table.revision += 1
        for feed in reporter.feeds:
            feed.close()
        if reporter.cache is not None:
            reporter.cache.close()

    def stored(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Note one more copy of each block."""
        reporter = self._reporters.get(slot)
        if reporter is not None and reporter.cache is not None:
            reporter.cache.hold(blocks)

    def removed(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Note one copy less of each block; a block that is not known is no error: its event may have been lost."""
        reporter = self._reporters.get(slot)
        if reporter is not None and reporter.cache is not None:
            reporter.cache.release(blocks)

    def cleared(self, slot: int) -> None:
        """Note that an engine holds nothing any more."""
        reporter = self._reporters.get(slot)
        if reporter is None:
            return
        if reporter.cache is not None:
            reporter.cache.clear()
        for feed in reporter.feeds:
            feed.cleared()

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int | None]:
        """Return how many leading blocks of a chain in our own names each slot holds; None where it is not believed."""
        reporters = {slot: self._caches(slot) for slot in slots}
        rows = _mask(cache for caches in reporters.values() for cache in caches or ())
        runs = self._table.runs(chain, rows)
        return [
            None
            if (caches := reporters[slot]) is None
            else max((sum(runs.get(c.row, (0,))) for c in caches), default=0)
            for slot in slots
        ]

    def tokens_held(self, chain: TokenChain, slots: Sequence[int]) -> list[int | None]:
        """Return how many leading tokens of a prompt each slot holds, those in far tiers by their weight.

        An engine of several data-parallel ranks that chooses one by itself, whatever they hold, counts as their mean;
        one that is told which rank is to answer counts as the best of them.

        Returns:
            A number per slot; None where an engine does not report, is not believed at the moment, has blocks of
            another size, or reports since a while only and may hold more than it said.
        """
        size, table = chain.block_tokens, self._table
        plan = self._plan(size, slots)
        if table.is_near:
            depths = table.depths(chain.hashes, plan.rows)
            if plan.simple is not None:
                depth_of = depths.get
                return [depth * size if (depth := depth_of(row)) else otherwise for row, otherwise in plan.simple]
            runs = {row: [depth] for row, depth in depths.items()}
        else:
            runs = table.runs(chain.hashes, plan.rows)
        return [
            None if caches is None else self._reporters[slot].tokens(caches, runs, size)
            for slot, caches in zip(slots, plan.caches, strict=True)
        ]

    def ranks(self, slot: int) -> int:
        """Return how many data-parallel ranks a request to an engine chooses from; 0 where the engine chooses.

        It also chooses while one of its ranks has not been heard: engines refuse a request for a rank that they lack.
        """
        reporter = self._reporters.get(slot)
        return len(reporter.feeds) if reporter is not None and reporter.names_ranks else 0

    def own_choices(self, slot: int) -> int:
        """Return how many data-parallel ranks an engine chooses from by itself; 1 where it is told, or has one."""
        reporter = self._reporters.get(slot)
        return 1 if reporter is None or reporter.names_ranks else max(len(reporter.feeds), 1)

    def tokens_by_rank(self, chain: TokenChain, slot: int) -> list[int]:
        """Return how many leading tokens of a prompt each rank of an engine holds, as `tokens_held` counts them."""
        reporter = self._reporters[slot]
        rows = _mask(cache for feed in reporter.feeds for cache in feed.caches.values())
        return reporter.by_rank(self._table.runs(chain.hashes, rows), chain.block_tokens)

    def block_tokens(self, slot: int) -> int | None:
        """Return the tokens of a block of an engine; None while it reports none or is not believed."""
        return next((c.block_tokens for c in self._caches(slot) or () if c.block_tokens is not None), None)

    def has_blocks_of(self, slot: int, block_tokens: int) -> bool:
        """Tell whether an engine is believed, and its blocks have a size, as far as they have any yet."""
        return slot in self and self.block_tokens(slot) in (block_tokens, None)

    def blocks(self, slot: int) -> int:
        """Return how many blocks a slot holds, copies not counted."""
        return sum(map(len, self._caches(slot) or ()))

    def tidy(self, most: int) -> bool:
        """Take back memory of what is held no more, at most so many blocks; returns whether there is more to do."""
        return self._table.tidy(most)

    def __len__(self) -> int:
        """Return the number of different blocks known, over all slots."""
        return len(self._table)

    def _plan(self, size: int, slots: Sequence[int]) -> _Plan:
        """Return what to ask for; kept, since it changes seldom and takes longer than asking."""
        if self._planned != self._table.revision or len(self._plans) > _MOST_PLANS:
            self._plans.clear()
            self._planned = self._table.revision
        key = (size, *slots)
        plan = self._plans.get(key)
        if plan is None:
            caches = [self._caches_of_size(slot, size) for slot in slots]
            plan = self._plans[key] = _Plan.of(caches, list(map(self._reporters.get, slots)))
        return plan

    def _caches_of_size(self, slot: int, block_tokens: int) -> list[EngineCache] | None:
        """Return the caches of a slot; None if it is not believed, or has blocks of another size."""
        caches = self._caches(slot)
        # A rank that was not used yet has no size; it holds nothing of any prompt.
        is_other = any(cache.block_tokens not in (block_tokens, None) for cache in caches or ())
        return None if is_other else caches

    def _caches(self, slot: int) -> list[EngineCache] | None:
        reporter = self._reporters.get(slot)
        return None if reporter is None else reporter.caches()


class MixedIndex:
    """Reports where there are any, our own history elsewhere."""

    def __init__(self, observed: ObservedIndex, resident: ResidentIndex) -> None:
        self._observed = observed
        self._resident = resident

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks of a chain, of at least one block, each slot holds."""
        observed = self._observed.depths(chain, slots)
        resident = self._resident.depths(chain, slots)
        return [own if told is None else told for own, told in zip(observed, resident, strict=True)]

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:
        """Note what a slot will hold, for the time when its reports fail."""
        return self._observed.learn(slot, chain, None if slot in self._resident else depth)

    def forget(self, slot: int, chain: Sequence[BlockHash], depth: int, stamp: int) -> None:
        """Take back what was learnt."""
        self._observed.forget(slot, chain, depth, stamp)

    def clear(self, slot: int) -> None:
        """Forget our own history of a slot; what it holds now its reports tell."""
        self._observed.clear(slot)

    def correct(self, slot: int, predicted: float, actual: float, length: float, slack: float = 0.0) -> None:
        """Correct our own history, if that was what predicted."""
        if slot not in self._resident:
            self._observed.correct(slot, predicted, actual, length, slack)

    def used(self, slot: int, block: BlockHash) -> int:
        """Return the stamp of a block's last use in our own history; 0 if it is not known."""
        return self._observed.used(slot, block)

    def ended(self, slot: int, chain: Sequence[BlockHash], answer: int) -> None:
        """Note what a slot kept until now, for the time when its reports fail."""
        self._observed.ended(slot, chain, answer)

    def found(self, slot: int, used: int, stamp: int) -> None:
        """Correct our own history, if that was what predicted."""
        if slot not in self._resident:
            self._observed.found(slot, used, stamp)

    def missed(self, slot: int, used: int, stamp: int) -> None:
        """Correct our own history, if that was what predicted."""
        if slot not in self._resident:
            self._observed.missed(slot, used, stamp)

    def scaled(self, slot: int, scale: float) -> None:
        """Tell our own history how its engine counts tokens."""
        self._observed.scaled(slot, scale)


def _mask(caches: Iterable[EngineCache]) -> int:
    mask = 0
    for cache in caches:
        mask |= 1 << cache.row
    return mask
