"""What is kept of the health of each endpoint that is not plainly well, and who belongs to which pool."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from math import floor, inf

import msgspec

from ext_proc.core.evidence import Evidence
from ext_proc.core.health_states import SERVING, HealthPolicy, HealthState
from ext_proc.core.model import Endpoint

_NONE: frozenset[int] = frozenset()


class HealthRecord(msgspec.Struct, eq=False):
    """One endpoint's state and the evidence for it.

    Attributes:
        endpoint: whose it is.
        evidence: what speaks for and against it.
        state: where it stands.
        since: when it came to stand there, monotonic seconds; None if it always did.
        because: why.
        until: when its ejection or its trial ends.
        ejections: how often it was ejected, less what was forgiven.
        ejected_at: when it was ejected last.
        returned_at: when it was let back in last.
        confirmed: probes saw the illness for which it is ejected.
        loading: the engine itself says that it loads.
        throttled: it would be ejected if the policy allowed another one.
        slow_from: when its slow start began; infinite if its clock does not run yet, None if there is none.
    """

    endpoint: Endpoint
    evidence: Evidence = msgspec.field(default_factory=Evidence)
    state: HealthState = HealthState.READY
    since: float | None = None
    because: str = ""
    until: float = -inf
    ejections: int = 0
    ejected_at: float = -inf
    returned_at: float = inf
    confirmed: bool = False
    loading: bool = False
    throttled: bool = False
    slow_from: float | None = None

    @property
    def is_special(self) -> bool:
        """Whether a decision must look at it."""
        return self.state not in SERVING or self.throttled or self.slow_from is not None

    def remembered(self, now: float, forgiveness: float) -> int:
        """Return how many ejections still count, after one was forgiven for each so many seconds since it is back."""
        if self.state not in SERVING or now <= self.returned_at:
            return self.ejections
        return max(self.ejections - floor((now - self.returned_at) / forgiveness), 0)

    def against(self, now: float, policy: HealthPolicy, lifeless: int, *, silent: bool) -> str:
        """Say what is against a serving endpoint; empty if nothing is.

        What degraded it must have halved before it no longer counts, so that the state does not flap.

        Args:
            now: monotonic seconds.
            policy: how much is too much.
            lifeless: signs that the process hangs or is gone.
            silent: whether its metrics cannot be read while those of others can.
        """
        evidence = self.evidence
        eased = 0.5 if self.state is HealthState.DEGRADED else 1.0
        seen = evidence.seen(now)
        if evidence.ratio >= policy.failure_ratio * 0.5 * eased and seen >= (
            1.0 if self.throttled else policy.least_samples * eased
        ):
            return f"{evidence.ratio:.0%} of {seen:.0f} requests failed"
        if silent and evidence.silent_since is not None and now - evidence.silent_since >= policy.silence / 2:
            return "its metrics cannot be read, those of others can"
        if lifeless >= policy.failed_probes:
            return evidence.told
        slow = 1.0 + (policy.slow - 1.0) * eased
        return f"{evidence.slowness:.1f} times slower than its peers" if evidence.slowness >= slow else ""

    def is_clean(self, now: float, policy: HealthPolicy, ratio: float) -> bool:
        """Tell whether nothing is worth remembering."""
        evidence = self.evidence
        return (
            self.state is HealthState.READY
            and not self.is_special
            and not self.remembered(now, policy.forgiveness)
            and evidence.proven
            and not evidence.row
            and (evidence.ratio < ratio or evidence.seen(now) < 1)
            and not evidence.failed_probes
            and evidence.silent_since is None
            and evidence.slowness < policy.slow
        )


class Members:
    """Which slots belong to which pool.

    Attributes:
        pools: the slots of each pool.
    """

    def __init__(self) -> None:
        self.pools: dict[str, set[int]] = {}
        self._pool_of: dict[int, str] = {}

    def add(self, endpoints: Iterable[Endpoint]) -> list[tuple[Endpoint, bool]]:
        """Take note of endpoints; returns each, and whether its pool was empty before."""
        came = list(endpoints)
        empty = {endpoint.pool for endpoint in came if not self.pools.get(endpoint.pool)}
        for endpoint in came:
            self.know(endpoint)
        return [(endpoint, endpoint.pool in empty) for endpoint in came]

    def know(self, endpoint: Endpoint) -> None:
        """Take note of one endpoint, if it is not known yet."""
        self.pools.setdefault(endpoint.pool, set()).add(endpoint.slot)
        self._pool_of[endpoint.slot] = endpoint.pool

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        pool = self._pool_of.pop(slot, None)
        if pool is not None:
            self.pools[pool].discard(slot)
            if not self.pools[pool]:
                del self.pools[pool]

    def present(self, pool: str, absent: AbstractSet[int]) -> int:
        """Count the members of a pool, without those that are absent."""
        slots = self.pools.get(pool, _NONE)
        return len(slots) - len(absent & slots)

    def peers(self, endpoint: Endpoint) -> int:
        """Count the members of an endpoint's pool, at least itself."""
        return max(len(self.pools.get(endpoint.pool, ())), 1)


class Marks:
    """Members of pools that have something in common, to be counted without a look at each."""

    def __init__(self) -> None:
        self._slots: dict[str, set[int]] = {}

    def put(self, endpoint: Endpoint, *, marked: bool) -> None:
        """Say whether an endpoint has it."""
        if marked:
            self._slots.setdefault(endpoint.pool, set()).add(endpoint.slot)
            return
        slots = self._slots.get(endpoint.pool)
        if slots is not None:
            slots.discard(endpoint.slot)
            if not slots:
                del self._slots[endpoint.pool]

    def count(self, pool: str, absent: AbstractSet[int]) -> int:
        """Return how many of a pool have it, without those that are absent."""
        slots = self._slots.get(pool, _NONE)
        return len(slots) - len(absent & slots)


def allowed(present: int, share: float) -> int:
    """Return how many of the endpoints that are present may be ejected: a share, but one of several in any case."""
    # Without the little more, a share such as 0.29 of 100 would be 28.
    return max(floor(share * present + 1e-9), 1 if present > 1 and share > 0 else 0)
