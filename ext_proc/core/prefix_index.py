"""Which endpoint holds which prefix, as learnt from our own decisions.

Every endpoint has a clock that counts the tokens it newly learnt, and every block the clock at its last use. Engines
evict what was not used for longest, and so does the index: it counts the tokens by their last use, and when all together
are more than fit, those used longest ago expire. A prompt is always touched as a whole, so along a chain stamps never
rise and what is held is a prefix of it. No block is evicted by itself: now and then an endpoint's table is written anew
without what has expired, since memory touched at every request is what a decision waits for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ext_proc.core.model import BlockHash

_LEAST_BETWEEN_SWEEPS = 1024
_TOLERATED_ERROR = 0.02
_STEP = 0.1
_GROWTH = 1.0005
_OLD_SHARE = 0.25
_FAR_OFF, _SHRINKING, _SHRUNK = 0.4, 0.2, 0.5
"""An engine that evicts after so small a share of the room is believed to have less, by so much of the difference, down
to so much of what was stated: a fleet that is short of memory evicts early now and then, though it is what it says.
"""
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

    def missed(self, slot: int, used: int, stamp: int) -> None:
        """Note that an engine lacked, at one stamp, a block that was last used at another, and so all older ones."""

    def scaled(self, slot: int, scale: float) -> None:
        """Note how many tokens its engine counts for each that is estimated here."""


class _Holdings:
    """What one endpoint is believed to hold.

    Attributes:
        stamps: the clock at each block's last use; some may have expired.
        clock: tokens newly learnt so far.
        floor: stamps up to this one have expired; it never falls, so nothing that is gone comes back.
        last_used: estimated tokens by the stamp of their last use, the oldest first; none that have expired.
        held: their sum.
        reach: how far the clock had come since the last use of what was evicted last; before that, the room.
        capacity: tokens believed to fit (corrected by what the engine reports of its hits).
        room: the same in estimated tokens, as the clock counts.
        roomy: blocks at which the table is swept.
        scale: tokens that the engine counts for each estimated one.
        stated: tokens that fit according to the configuration or the engine.
    """

    __slots__ = (
        "capacity",
        "clock",
        "floor",
        "held",
        "last_used",
        "reach",
        "room",
        "roomy",
        "scale",
        "stamps",
        "stated",
    )

    def __init__(self) -> None:
        self.stamps: dict[BlockHash, int] = {}
        self.clock = 0
        self.floor = 0
        self.last_used: OrderedDict[int, int] = OrderedDict()
        self.held = 0
        self.reach = 0.0
        self.capacity = self.room = 0.0
        self.scale = 1.0
        self.stated = 0
        self.roomy = _LEAST_BETWEEN_SWEEPS

    def resize(self, capacity: float, scale: float) -> None:
        """Believe that so many of the engine's tokens fit, and that it counts so many for each estimated one."""
        before = self.room
        self.capacity, self.scale = capacity, scale
        self.room = capacity / scale
        self.reach = self.reach * self.room / before if before else self.room
        self.expire()

    def expire(self) -> None:
        """Let go of what does not fit any more: what was not used for longest."""
        last_used = self.last_used
        while self.held > self.room and len(last_used) > 1:
            self.floor, tokens = last_used.popitem(last=False)
            self.held -= tokens
            self.reach = self.clock - self.floor

    def raise_floor(self, floor: int) -> None:
        """Let go of all that was last used by then."""
        last_used = self.last_used
        while last_used and next(iter(last_used)) <= floor:
            self.held -= last_used.popitem(last=False)[1]
        self.floor = max(self.floor, floor)

    def leave(self, stamp: int, tokens: int) -> int:
        """Note that so many tokens were used again since, or are gone; return how many there were at most."""
        before = self.last_used.get(stamp, 0)
        if before > tokens:
            self.last_used[stamp] = before - tokens
            return tokens
        self.last_used.pop(stamp, None)
        return before

    def clear(self) -> None:
        """Forget all."""
        self.stamps, self.last_used, self.held = {}, OrderedDict(), 0

    def sweep(self) -> None:
        """Write the table anew without what has expired."""
        floor = self.floor
        self.stamps = {block: stamp for block, stamp in self.stamps.items() if stamp > floor}
        self.roomy = max(2 * len(self.stamps), _LEAST_BETWEEN_SWEEPS)


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
        self._slots: dict[int, _Holdings] = {}
        self._nothing = _Holdings()
        self._total = 0

    @property
    def fill(self) -> float:
        """How many of the blocks that it may remember it does, as a share."""
        return self._total / self._max_blocks

    def add(self, slot: int, capacity: int | None = None) -> None:
        """Begin to remember for a slot; `capacity` in tokens. A slot that is known keeps what it holds."""
        held = self._slots.setdefault(slot, _Holdings())
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
        depth = 1
        for slot in slots:
            held = get(slot, nothing)
            stamp, floor = held.stamps.get, held.floor
            if stamp(first, 0) <= floor:
                found.append(0)
                continue
            # Endpoints that share a prefix share all of it as a rule: begin where the one before ended.
            if stamp(chain[depth - 1], 0) <= floor or (depth < count and stamp(chain[depth], 0) > floor):
                depth = held_depth(held.stamps, floor, chain, depth)
            found.append(depth)
        return found

    def learn(self, slot: int, chain: Sequence[BlockHash], depth: int | None = None) -> int:
        """Note that a slot will hold the whole chain; returns the stamp by which it can be taken back.

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
            chain, size = chain[:count], tokens(count)
        depth = min(depth, count)
        # One more than the new tokens: two prompts never share a stamp.
        held.clock = clock = held.clock + 1 + size - tokens(depth)
        held.held += size - (self._used_again(held, chain, depth) if depth else 0)
        held.last_used[clock] = size
        held.expire()
        stamps = held.stamps
        before = len(stamps)
        for block in chain:  # a third of what `update` of a new dict takes
            stamps[block] = clock
        self._total += len(stamps) - before
        if len(stamps) > held.roomy or self._total > self._max_blocks:
            self._make_room(held)
        return clock

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
            capacity = held.capacity * (1 - _SHRINKING * (1 - age / reach))
            held.resize(max(capacity, _SHRUNK * held.stated), held.scale)

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

    def _fitting(self, held: _Holdings, chain: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain a slot has room for."""
        low, high = 0, min(len(chain), self._max_blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if self._tokens(middle) <= held.room:
                low = middle
            else:
                high = middle - 1
        return low

    def _used_again(self, held: _Holdings, chain: Sequence[BlockHash], depth: int) -> int:
        """Take the leading blocks of a chain, all held, from when they were last used; return their tokens."""
        stamps, covered = held.stamps, self._tokens
        oldest = stamps[chain[depth - 1]]
        begin = before = taken = 0
        while begin < depth:
            stamp = stamps[chain[begin]]
            end = depth if stamp == oldest else held_depth(stamps, stamp - 1, chain[:depth], begin + 1)
            after = covered(end)
            taken += held.leave(stamp, after - before)
            begin, before = end, after
        return taken

    def _make_room(self, learner: _Holdings) -> None:
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

    def _sweep(self, held: _Holdings) -> None:
        before = len(held.stamps)
        held.sweep()
        self._total += len(held.stamps) - before


def held_depth(table: Mapping[BlockHash, int], floor: int, chain: Sequence[BlockHash], guess: int) -> int:
    """Return how many leading blocks of a chain are held: those with a number above the floor.

    The first block must be, and what is held must be a prefix of the chain.

    Args:
        table: a number for each block, a stamp or a count.
        floor: the highest number that means that a block is not held.
        chain: hash chain of a prompt.
        guess: a likely answer, from 1 to the length of the chain; a right one takes two look-ups.
    """
    get, count = table.get, len(chain)
    low, high = 1, count
    if get(chain[guess - 1], 0) > floor:
        low = guess
        if guess < count and get(chain[guess], 0) <= floor:
            return guess
    else:
        high = guess - 1
    if low < high and get(chain[high - 1], 0) > floor:
        return high
    while low < high:
        middle = (low + high) // 2 + 1
        if get(chain[middle - 1], 0) > floor:
            low = middle
        else:
            high = middle - 1
    return low
