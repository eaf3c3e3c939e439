"""Which data-parallel rank of an engine a request is sent to, where the pick names it.

Ranks are engines behind one address: each has a cache and a queue of its own. Of an endpoint's ranks the one is taken
that can produce the first token soonest. For rank r, with S_r its prefill in seconds and n_r its requests in flight:

    W_r    = max(0, B_r - now)                  the rank's virtual queue
    cost_r = W_r + S_r * (1 + 0.03 min(n_r, 64))
    on dispatch: B_r = max(B_r, now) + S_r; n_r += 1

That is least-wait without what all ranks of an engine have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_INTERFERENCE = 0.03
_INTERFERENCE_CAP = 64


class RankLoads:
    """Work in flight by slot and rank, of the requests whose rank was named."""

    def __init__(self) -> None:
        self._ranks: dict[int, list[_Rank]] = {}
        self._sent: dict[str, _Rank] = {}

    def choose(self, slot: int, seconds: Sequence[float], now: float) -> int:
        """Return the rank to be named; of equal ones the one with the fewest in flight, then each in its turn.

        Args:
            slot: the engine.
            seconds: own prefill at each rank, S.
            now: monotonic seconds.
        """
        ranks = self._of(slot, len(seconds))
        costs = [
            (
                max(rank.busy_until - now, 0.0) + own * (1 + _INTERFERENCE * min(rank.in_flight, _INTERFERENCE_CAP)),
                rank.in_flight,
                rank.dispatched,
                number,
            )
            for number, (rank, own) in enumerate(zip(ranks, seconds, strict=False))
        ]
        return min(costs)[-1]

    def sent(self, name: str, slot: int, number: int, seconds: float, now: float) -> None:
        """Note that a request was sent to a rank, where its prefill takes so many seconds."""
        rank = self._of(slot, number + 1)[number]
        rank.busy_until = max(rank.busy_until, now) + seconds
        rank.in_flight += 1
        rank.dispatched += 1
        self._sent[name] = rank

    def ended(self, name: str) -> None:
        """Note that a request is over; one that is not known is no error."""
        rank = self._sent.pop(name, None)
        if rank is not None:
            rank.in_flight -= 1

    def remove(self, slot: int) -> None:
        """Forget a slot; what is in flight there ends without effect on a successor."""
        self._ranks.pop(slot, None)

    def in_flight(self, slot: int) -> list[int]:
        """Return the requests in flight at each rank of a slot that was named before."""
        return [rank.in_flight for rank in self._ranks.get(slot, ())]

    def _of(self, slot: int, count: int) -> list[_Rank]:
        ranks = self._ranks.setdefault(slot, [])
        ranks += (_Rank() for _ in range(count - len(ranks)))
        return ranks


class _Rank(msgspec.Struct, gc=False):
    """One rank: until when it prefills, what is in flight there, and what was ever sent there."""

    busy_until: float = 0.0
    in_flight: int = 0
    dispatched: int = 0
