"""Work in flight: a lease per dispatched request, and a virtual prefill queue per endpoint.

The queue (B, a point in time) says when an endpoint will have prefilled all that was sent to it; it grows by each
dispatch and drains by itself as time passes. Counting at dispatch, not at a scrape, is what keeps a burst from
landing on one endpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf

import msgspec

from ext_proc.core.model import BlockHash, Decision
from ext_proc.core.prefill import Prefill

_OVERSTAY = 5.0
_LEAST_STAY = 60.0
_RECENT = 256


class Load(msgspec.Struct, gc=False):
    """What is in flight at one endpoint.

    Attributes:
        in_flight: requests (n).
        tokens: prompt and expected output tokens of those requests (M).
        busy_until: when the virtual prefill queue is empty (B), monotonic seconds.
        dispatched: seconds of prefill ever sent here.
        begun: how much of that is known to be done, by first tokens and ends.
        recent: seconds of prefill of the latest dispatches; None unless the engine's queue is known.
    """

    in_flight: int = 0
    tokens: int = 0
    busy_until: float = 0.0
    dispatched: float = 0.0
    begun: float = 0.0
    recent: deque[float] | None = None


class Learnt(msgspec.Struct, frozen=True, gc=False):
    """What a decision taught the index, so that it can be taken back.

    Attributes:
        chain: hash chain of the prompt; empty if nothing was learnt.
        depth: leading blocks that the endpoint held before.
        stamp: what `PrefixIndex.learn` returned.
        estimated: tokens of the prompt as they were estimated from its bytes.
        used: stamp of the last of those blocks before, the one that was not used for longest.
    """

    chain: Sequence[BlockHash] = ()
    depth: int = 0
    stamp: int = 0
    estimated: int = 0
    used: int = 0


NOTHING_LEARNT = Learnt()


class Lease(msgspec.Struct, gc=False):
    """One request's claim on an endpoint, from its decision to its outcome.

    Attributes:
        decision: what it was decided by.
        learnt: what it taught the index.
        prefill: what was predicted of its prefill.
        load: of the endpoint, even if that is gone by now.
        sent: the load's `dispatched` with this request in it.
        tokens: prompt and expected output tokens claimed.
        counted: False for requests that cost an engine next to nothing.
        seen_at: when it was taken or last renewed, monotonic seconds.
        first_token: seconds from the decision to the first token; None if none was seen.
        served: address of the endpoint whose token that was.
    """

    decision: Decision
    learnt: Learnt
    prefill: Prefill
    load: Load
    sent: float
    tokens: int
    counted: bool
    seen_at: float
    first_token: float | None = None
    served: str | None = None


class Ledger:
    """Leases by decision id and loads by slot.

    Args:
        timeout: seconds after which a lease without an outcome is given up.
        renewal_timeout: the same once the access log has been seen to renew leases of running requests.
    """

    def __init__(
        self,
        *,
        timeout: float = 900.0,
        renewal_timeout: float = 45.0,
    ) -> None:
        self._timeout = timeout
        self._renewal_timeout = renewal_timeout
        self._renewed = False
        self._loads: dict[int, Load] = {}
        self._idle = Load()
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        """Return the number of open leases."""
        return len(self._leases)

    @property
    def waiting_since(self) -> float | None:
        """When the lease that was not heard of for the longest was last heard of; None without leases."""
        return next(iter(self._leases.values())).seen_at if self._leases else None

    def add(self, slot: int) -> None:
        """Begin to count for a slot that a new endpoint got."""
        self._loads[slot] = Load()

    def remove(self, slot: int) -> None:
        """Stop counting for a slot; leases of its endpoint go on and end without effect on a successor."""
        self._loads.pop(slot, None)

    def load(self, slot: int) -> Load:
        """Return what is in flight at a slot; an unknown one has nothing in flight."""
        return self._loads.get(slot) or Load()

    def loads_of(self, slots: Sequence[int]) -> list[Load]:
        """Return what is in flight at each slot; not to be altered."""
        get, idle = self._loads.get, self._idle
        return [get(slot, idle) for slot in slots]

    def take(
        self,
        decision: Decision,
        learnt: Learnt,
        prefill: Prefill,
        *,
        output: float,
        now: float,
        counted: bool = True,
    ) -> Lease:
        """Book a decision at its chosen endpoint.

        Args:
            decision: what to book.
            learnt: what it taught the index.
            prefill: what is predicted of its prefill.
            output: tokens the answer is expected to have.
            now: monotonic seconds.
            counted: False for requests that cost an engine next to nothing.
        """
        tokens = decision.request.prompt_tokens + int(output) if counted else 0
        load = self.load(decision.chosen.slot)
        if counted:
            seconds = prefill.seconds
            load.in_flight += 1
            load.tokens += tokens
            load.busy_until = max(load.busy_until, now) + seconds
            load.dispatched += seconds
            if load.recent is not None:
                load.recent.append(seconds)
        lease = Lease(decision, learnt, prefill, load, load.dispatched, tokens, counted, now)
        self._leases[decision.id] = lease
        return lease

    def first_token(self, decision_id: str, now: float, served: str | None = None) -> Lease | None:
        """Note a request's first token and return its lease; None if there is none or it answers already.

        Engines serve first come, first served: what was sent before it is prefilled too, what was sent after it is
        left to do, and the queue begins anew from now. A token of another endpoint than the chosen one (`served`, an
        address) says nothing of that queue.
        """
        lease = self._leases.get(decision_id)
        if lease is None or lease.first_token is not None or not lease.counted:
            return None
        decision = lease.decision
        lease.first_token = now - decision.decided_at
        lease.served = served or decision.chosen.address
        if lease.served != decision.chosen.address:
            return lease
        load = lease.load
        load.begun = max(load.begun, lease.sent)
        load.busy_until = now + load.dispatched - load.begun
        return lease

    def queue(self, slot: int, waiting: int, running: int, now: float) -> None:
        """Set a virtual queue right by the requests that an engine says are waiting and running.

        Those that wait are taken to be the latest ones, ours in proportion to what we have there, and half of the next
        one to be done (the waiting correction of the policy). For engines whose first tokens are not heard of.
        """
        load = self._loads.get(slot)
        if load is None:
            return
        if load.recent is None:
            load.recent = deque(maxlen=_RECENT)
        recent = load.recent
        if not recent:
            return
        if not waiting:
            load.busy_until = min(load.busy_until, now + recent[-1])
            return
        own = round(waiting * min(load.in_flight / max(waiting + running, 1), 1.0))
        latest = list(islice(reversed(recent), own + 1))
        seconds = sum(latest[:own]) + sum(latest[own:]) / 2
        load.busy_until = now + seconds + (waiting - own) * sum(recent) / len(recent)

    def renew(self, decision_id: str, now: float) -> bool:
        """Note that a request still runs; False if its lease is unknown."""
        self._renewed = True
        lease = self._leases.pop(decision_id, None)
        if lease is None:
            return False
        lease.seen_at = now
        self._leases[decision_id] = lease  # behind all that were heard of before
        return True

    def end(self, decision_id: str, now: float, *, answered: bool = False) -> Lease | None:
        """End a lease and return it; None if it is unknown or ended already.

        Args:
            decision_id: whose.
            now: monotonic seconds.
            answered: True if an engine answered to the end: then all that was sent before is prefilled too.
        """
        lease = self._leases.pop(decision_id, None)
        if lease is not None and lease.counted:
            _release(lease, now)
            if answered:
                load = lease.load
                load.begun = max(load.begun, lease.sent)
                load.busy_until = min(load.busy_until, now + load.dispatched - load.begun)
        return lease

    def expire(self, now: float, residence: float = inf) -> list[Lease]:
        """Give up the leases whose outcome is overdue and return them: their log entries were lost.

        Where running requests are not reported, a request weighs on its endpoint no longer than five times the usual,
        though its outcome is still waited for.

        Args:
            now: monotonic seconds.
            residence: seconds that requests usually stay.
        """
        limit = self._renewal_timeout if self._renewed else self._timeout
        if not self._renewed:
            self._lighten(now - max(_OVERSTAY * residence, _LEAST_STAY), now)
        overdue: list[Lease] = []
        for lease in self._leases.values():
            if lease.seen_at + limit > now:
                break
            overdue.append(lease)
        for lease in overdue:
            self.end(lease.decision.id, now)
        return overdue

    def _lighten(self, before: float, now: float) -> None:
        for lease in self._leases.values():
            if lease.seen_at > before:
                break
            if lease.counted:
                lease.counted = False
                _release(lease, now)


def _release(lease: Lease, now: float) -> None:
    load = lease.load
    load.in_flight -= 1
    load.tokens -= lease.tokens
    if not load.in_flight:
        load.busy_until = min(load.busy_until, now)
