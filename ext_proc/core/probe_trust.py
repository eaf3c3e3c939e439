"""Whether active probes say anything of a pool: they do not where they fail and requests are answered all the same.

So it is where a network lets only Envoy speak with the engines: believed, such probes would take the pool
out of service, all but the one endpoint that happened to answer a request first.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from math import inf

_LASTS = 30.0
"""Seconds for which one good probe of a pool says that probes of it work."""


class ProbeTrust:
    """Which pools' probes are believed."""

    def __init__(self) -> None:
        self._good_at: dict[str, float] = {}
        self._blind: set[str] = set()

    @property
    def lost(self) -> bool:
        """Whether the probes of some pool are not believed."""
        return bool(self._blind)

    def holds(self, pool: str) -> bool:
        """Tell whether a failed probe says something of an endpoint of a pool."""
        return pool not in self._blind

    def confirmed(self, pool: str, now: float) -> None:
        """Note a good probe."""
        self._good_at[pool] = now
        self._blind.discard(pool)

    def contradicted(self, pool: str, now: float) -> bool:
        """Note that an endpoint answered a request while probes of it failed; True if probes are not believed now."""
        if now - self._good_at.get(pool, -inf) <= _LASTS or pool in self._blind:
            return False
        self._blind.add(pool)
        return True

    def keep(self, pools: AbstractSet[str]) -> None:
        """Forget all pools but these."""
        self._blind &= pools
        for pool in self._good_at.keys() - pools:
            del self._good_at[pool]
