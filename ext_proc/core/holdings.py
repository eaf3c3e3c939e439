"""What one endpoint is believed to hold: the blocks of prompts, of which those expire first that were used longest ago.

A clock counts the tokens newly learnt, and every block has the clock at its last use. The tokens last used at one time
are counted together, and when there are more than fit, those used longest ago expire. A prompt is always touched as a
whole, so along a chain stamps never rise and what is held is a prefix of it. No block is evicted by itself: now and
then the table is written anew without what has expired, since memory touched at every request is what a decision waits
for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from ext_proc.core.model import BlockHash

_LEAST_BETWEEN_SWEEPS = 1024
_FINEST = 1 / 256
"""Share of the room that is told apart by its last use where it is no blocks: answers, perhaps of one token each."""


class Holdings:
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
        roomy: blocks, or times of last use, at which both are swept.
        scale: tokens that the engine counts for each estimated one.
        joint: blocks of the latest prompt up to where it went on otherwise than one used since; the next may do so too.
        stated: tokens that fit according to the configuration or the engine.
    """

    __slots__ = (
        "capacity",
        "clock",
        "floor",
        "held",
        "joint",
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
        self.joint = 1

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

    def fill(self, tokens: int) -> None:
        """Note that so many tokens besides those of known blocks were used just now."""
        if tokens > 0:
            self.last_used[self.clock] = self.last_used.get(self.clock, 0) + tokens
            self.held += tokens
            self.expire()

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

    def leave_prefix(self, chain: Sequence[BlockHash], depth: int, covered: Callable[[int], int]) -> int:
        """Note that the leading blocks of a chain, all held, were used again since; return how many tokens there were.

        Args:
            chain: hash chain of a prompt.
            depth: so many of its blocks, at least one.
            covered: tokens of so many leading blocks of a prompt.
        """
        stamps, oldest = self.stamps, self.stamps[chain[depth - 1]]
        begin = before = left = 0
        while begin < depth:
            stamp = stamps[chain[begin]]
            if stamp == oldest:
                end = depth
            else:
                end = held_depth(stamps, stamp - 1, chain, self.joint if begin < self.joint <= depth else begin + 1)
                self.joint = end
            after = covered(end)
            left += self.leave(stamp, after - before)
            begin, before = end, after
        return left

    def clear(self) -> None:
        """Forget all."""
        self.stamps, self.last_used, self.held = {}, OrderedDict(), 0

    def sweep(self) -> None:
        """Write the table anew without what has expired, and count together what no block is told apart by."""
        floor = self.floor
        self.stamps = {block: stamp for block, stamp in self.stamps.items() if stamp > floor}
        self._merge()
        self.roomy = max(2 * len(self.stamps), 2 * len(self.last_used), _LEAST_BETWEEN_SWEEPS)

    def _merge(self) -> None:
        """Count what was generated between two uses of blocks as if it were of the later one, unless it is much."""
        used, most = set(self.stamps.values()), _FINEST * self.room
        merged: OrderedDict[int, int] = OrderedDict()
        tokens = stamp = 0
        for stamp, more in self.last_used.items():
            tokens += more
            if stamp in used or tokens >= most:
                merged[stamp], tokens = tokens, 0
        if tokens:
            merged[stamp] = tokens
        self.last_used = merged


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
