"""Which endpoint holds which prefix, as learnt from our own decisions.

A prompt is held from its decision on, and is used once more when it has been answered: its engine had to keep it until
then. Hash chains are cut as engines cut them, so what is held of a prompt is a prefix of its chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ext_proc.core.holdings import Holdings, held_depth
from ext_proc.core.model import BlockHash

_TOLERATED_ERROR = 0.02
_STEP = 0.1
_GROWTH = 1.0005
_OLD_SHARE = 0.25
_FAR_OFF, _FAR_OFF_STEP, _SHRUNK = 0.4, 0.2, 0.5
"""An engine that evicts after so small a share of what was expected is believed to have less memory, by so much of the
difference, down to so much of what was stated: a fleet that is short of memory evicts early now and then, though it is
what it says.
"""

_MOST_GROWTH = 2.0
"""One that still holds what should have expired is believed to be as much larger, at most so many times."""

_RECENT = 1 / 64
"""Share of the time until it expires within which a prompt need not be noted again."""

_LEAST_SHARE, _MOST_SHARE = 0.02, 3.0


class PrefixIndex(Protocol):
    """Who holds which prefix, as the picker asks and as outcomes correct it."""

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks of a chain, of at least one block, each slot holds."""

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:
        """Note that a slot will hold a chain, of which it holds `depth` blocks; returns a stamp to take it back by."""

    def forget(self, slot: int, chain: Sequence[BlockHash], depth: int, stamp: int) -> None:
        """Take back what was learnt by that stamp of a chain, but for so many leading blocks."""

    def clear(self, slot: int) -> None:
        """Forget what a slot holds: its engine has lost it, for instance by a restart."""

    def correct(self, slot: int, predicted: float, actual: float, length: float, slack: float = 0.0) -> None:
        """Learn from the cached tokens that an engine reports of a prompt of that length."""

    def used(self, slot: int, block: BlockHash) -> int:
        """Return the stamp of a block's last use; 0 if it is not known."""

    def ended(self, slot: int, chain: Sequence[BlockHash], answer: int) -> None:
        """Note that an engine kept a prompt until now, and tokens that it generated for it."""

    def missed(self, slot: int, used: int, stamp: int) -> None:
        """Note that an engine lacked, at one stamp, a block that was last used at another, and so all older ones."""

    def found(self, slot: int, used: int, stamp: int) -> None:
        """Note that an engine had, at one stamp, a block last used at another, which was believed to be gone."""

    def scaled(self, slot: int, scale: float) -> None:
        """Note how many tokens its engine counts for each that is estimated here."""


class ObservedIndex:
    """Prefixes by endpoint slot, bounded per endpoint in tokens and over all in blocks.

    Args:
        tokens: tokens of so many leading blocks of a prompt, as the hasher cuts them.
        max_blocks: bound over all endpoints; who holds the most gives way first.
        default_capacity: tokens of an endpoint whose KV capacity is unknown.
    """

    def __init__(
        self, tokens: Callable[[int], int], *, max_blocks: int = 1_000_000, default_capacity: int = 400_000
    ) -> None:
        self._tokens = tokens
        self._max_blocks = max_blocks
        self._default_capacity = default_capacity
        self._slots: dict[int, Holdings] = {}
        self._nothing = Holdings()
        self._total = 0
        self._usual = 1

    @property
    def fill(self) -> float:
        """How many of the blocks that it may remember it does, as a share."""
        return self._total / self._max_blocks

    def add(self, slot: int, capacity: int | None = None) -> None:
        """Begin to remember for a slot; `capacity` in tokens. A slot that is known keeps what it holds."""
        held = self._slots.setdefault(slot, Holdings())
        stated = capacity or self._default_capacity
        if stated != held.stated:
            held.stated = stated
            held.resize(float(stated), held.scale)

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        held = self._slots.pop(slot, None)
        if held is not None:
            self._total -= len(held.stamps)

    def clear(self, slot: int) -> None:
        """Forget what a slot holds: its engine has lost it, for instance by a restart."""
        held = self._slots.get(slot)
        if held is not None:
            self._total -= len(held.stamps)
            held.clear()

    def depths(self, chain: Sequence[BlockHash], slots: Sequence[int]) -> list[int]:
        """Return how many leading blocks of a chain, of at least one block, each slot holds."""
        get, nothing, first, count = self._slots.get, self._nothing, chain[0], len(chain)
        found = []
        # Many hold what all prompts of an application begin with, few what their conversation goes on with: two depths.
        depth = other = min(self._usual, count)
        for slot in slots:
            held = get(slot, nothing)
            stamp, floor = held.stamps.get, held.floor
            if stamp(first, 0) <= floor:
                found.append(0)
                continue
            # Endpoints that share a prefix share all of it as a rule: begin where the one before ended.
            if stamp(chain[depth - 1], 0) <= floor or (depth < count and stamp(chain[depth], 0) > floor):
                depth, other = held_depth(held.stamps, floor, chain, other), depth
            found.append(depth)
        # The lesser one, if somebody holds so much, is what the next prompt of the application has in common with this.
        self._usual = other if other < depth and other in found else depth
        return found

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:
        """Note that a slot will hold the whole chain; returns the stamp by which it can be taken back, 0 for nothing.

        Args:
            slot: an unknown one learns nothing.
            chain: hash chain of a prompt; what does not fit is left out from its end.
            depth: leading blocks that the slot holds already; None looks it up.
        """
        held = self._slots.get(slot)
        if held is None or not chain:
            return 0
        if depth is None:
            depth = self.depths(chain, (slot,))[0]
        tokens, count = self._tokens, len(chain)
        size = tokens(count)
        if size > held.room or count > self._max_blocks:
            count = self._fitting(held, chain)
            if not count:
                return 0
            chain, size = chain[:count], tokens(count)
        depth = min(depth, count)
        # One more than the new tokens: two prompts never share a stamp.
        held.clock = clock = held.clock + 1 + size - tokens(depth)
        held.held += size - (held.leave_prefix(chain, depth, tokens) if depth else 0)
        held.last_used[clock] = size
        held.expire()
        stamps = held.stamps
        before = len(stamps)
        for block in chain:  # a third of what `update` of a new dict takes
            stamps[block] = clock
        self._total += len(stamps) - before
        if len(stamps) > held.roomy or len(held.last_used) > held.roomy or self._total > self._max_blocks:
            self._make_room(held)
        return clock

    def ended(self, slot: int, chain: Sequence[BlockHash], answer: int) -> None:
        """Note that an engine kept a prompt until now: only from now on is it evicted.

        Args:
            slot: an unknown one learns nothing.
            chain: hash chain of the prompt.
            answer: generated tokens, as the engine counts; they fill memory like those of prompts.
        """
        held = self._slots.get(slot)
        if held is None or not chain:
            return
        used = held.stamps.get(chain[-1], 0)
        if used <= held.floor or held.clock - used > _RECENT * held.reach:
            self.learn(slot, chain)
        held.fill(int(answer / held.scale))

    def forget(self, slot: int, chain: Sequence[BlockHash], depth: int, stamp: int) -> None:
        """Take the end of a chain from a slot that turned out not to hold it.

        Args:
            slot: where it was believed to be.
            chain: hash chain of a prompt.
            depth: leading blocks that stay.
            stamp: what `learn` returned; blocks used again since then are left to who used them.
        """
        held = self._slots.get(slot)
        if held is None:
            return
        stamps, floor, covered = held.stamps, held.floor, self._tokens
        before = len(stamps)
        for place in range(depth, len(chain)):
            used = stamps.get(chain[place], stamp + 1)
            if used > stamp:
                continue
            del stamps[chain[place]]
            if used > floor:
                size = covered(place + 1) - covered(place)
                held.held -= held.leave(used, size)
        self._total += len(stamps) - before

    def correct(self, slot: int, predicted: float, actual: float, length: float, slack: float = 0.0) -> None:
        """Correct a slot's capacity by the cached tokens an engine reports, as simulation settled it.

        Args:
            slot: who served the prompt.
            predicted: tokens that were believed to be cached.
            actual: tokens that were.
            length: tokens of the prompt.
            slack: tokens of the block behind those predicted: an engine counts in finer steps, and less than that
                more is what was predicted.
        """
        held = self._slots.get(slot)
        if held is None or length <= 0:
            return
        error = 0.0 if 0 <= actual - predicted < slack else (actual - predicted) / length
        capacity = held.capacity
        if error < -_TOLERATED_ERROR:
            capacity *= 1 + _STEP * max(error, -1.0)
        elif error > _TOLERATED_ERROR:
            capacity *= 1 + _STEP * min(error, 1.0)
        elif predicted > 0:
            capacity *= _GROWTH
        held.resize(min(max(capacity, _LEAST_SHARE * held.stated), _MOST_SHARE * held.stated), held.scale)

    def used(self, slot: int, block: BlockHash) -> int:
        """Return the stamp of a block's last use; 0 if it is not known."""
        held = self._slots.get(slot)
        return held.stamps.get(block, 0) if held else 0

    def missed(self, slot: int, used: int, stamp: int) -> None:
        """Forget what cannot be there, since engines evict what was not used for longest; perhaps one is smaller, too.

        Args:
            slot: the engine.
            used: the stamp of a block that it lacked.
            stamp: the stamp at which it lacked it. A block that was used shortly before says nothing of eviction: it
                was not computed yet.
        """
        held = self._slots.get(slot)
        if held is None or (age := stamp - used) < _OLD_SHARE * held.reach:
            return
        reach = held.reach
        held.raise_floor(used)
        if age < _FAR_OFF * reach and held.capacity > _SHRUNK * held.stated:
            capacity = held.capacity * (1 - _FAR_OFF_STEP * (1 - age / reach))
            held.resize(max(capacity, _SHRUNK * held.stated), held.scale)

    def found(self, slot: int, used: int, stamp: int) -> None:
        """Believe that an engine is larger, since it still held what should have expired.

        Args:
            slot: the engine.
            used: the stamp of a block that it held.
            stamp: the stamp at which it held it.
        """
        held = self._slots.get(slot)
        if held is not None and held.floor and (age := stamp - used) > held.reach:
            capacity = held.capacity * min(age / held.reach, _MOST_GROWTH)
            held.resize(min(capacity, _MOST_SHARE * held.stated), held.scale)

    def scaled(self, slot: int, scale: float) -> None:
        """Note how many tokens its engine counts for each estimated one, above 0, by which its capacity is less here.

        A rule of thumb for all texts may be wrong by half for one model; a small cache would seem twice as large.
        """
        held = self._slots.get(slot)
        if held is not None:
            held.resize(held.capacity, scale)

    def capacity(self, slot: int) -> int:
        """Return the tokens, as its engine counts, that a slot is believed to hold at most; 0 for an unknown one."""
        held = self._slots.get(slot)
        return int(held.capacity) if held else 0

    def blocks(self, slot: int) -> int:
        """Return how many blocks are kept of a slot, expired ones that were not swept yet included."""
        held = self._slots.get(slot)
        return len(held.stamps) if held else 0

    def newest(self, slot: int, most: int) -> list[BlockHash]:
        """Return at most so many blocks that a slot holds: the last used first, and of a prompt its beginning."""
        held = self._slots.get(slot)
        if held is None or most <= 0:
            return []
        alive = [(block, stamp) for block, stamp in held.stamps.items() if stamp > held.floor]
        alive.sort(key=lambda used: used[1], reverse=True)
        return [block for block, _ in alive[:most]]

    def __len__(self) -> int:
        """Return the number of blocks kept, over all slots."""
        return self._total

    def _fitting(self, held: Holdings, chain: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain a slot has room for."""
        low, high = 0, min(len(chain), self._max_blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if self._tokens(middle) <= held.room:
                low = middle
            else:
                high = middle - 1
        return low

    def _make_room(self, learner: Holdings) -> None:
        self._sweep(learner)
        while self._total > self._max_blocks:
            spared = learner if learner.floor >= learner.clock - 1 else None  # it is down to its newest prompt
            others = (held for held in self._slots.values() if held is not spared)
            largest = max(others, key=lambda held: len(held.stamps))
            before = len(largest.stamps)
            self._sweep(largest)
            if len(largest.stamps) == before:  # all of it is in use: the older half of its time goes
                newest = largest.clock - (largest is learner)
                largest.raise_floor(min(largest.floor + max((largest.clock - largest.floor) // 2, 1), newest))
                self._sweep(largest)

    def _sweep(self, held: Holdings) -> None:
        before = len(held.stamps)
        held.sweep()
        self._total += len(held.stamps) - before
