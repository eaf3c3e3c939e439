"""Work in flight: a lease per dispatched request, and a virtual prefill queue per endpoint.

The queue (B, a point in time) says when an endpoint will have prefilled all that was sent to it; it grows by each
dispatch and drains by itself as time passes. Counting at dispatch, not at a scrape, is what keeps a burst from
landing on one endpoint. Where an endpoint is an engine of several data-parallel ranks, those drain one queue together
(`rank_queue`), and B is when one of them is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, repeat
from math import inf

import msgspec

from ext_proc.core.learnt import Learnt
from ext_proc.core.load import NO_PLACE, Load, Place, Service
from ext_proc.core.model import GENERATING, Decision
from ext_proc.core.prefill import Prefill
from ext_proc.core.sharing import Sharing
from ext_proc.core.siblings import Siblings

_OVERSTAY = 5.0
_MOST_SEARCHED = 4096
_MOST_ROWS = 64
_LEAST_STAY = 60.0
_CROWDED = 0.5
"""Share of an endpoint's KV memory from which on it is worth counting what requests have in common."""


class Lease(msgspec.Struct, gc=False):
    """One request's claim on an endpoint, from its decision to its outcome.

    Attributes:
        decision: what it was decided by.
        learnt: what it taught the index.
        prefill: what was predicted of its prefill.
        load: of the endpoint, even if that is gone by now.
        place: where it stands in the endpoint's queue.
        tokens: prompt and expected output tokens claimed.
        counted: False for requests that cost an engine next to nothing.
        seen_at: when it was taken or last renewed, monotonic seconds.
        first_token: seconds from the decision to the first token; None if none was seen.
        served: address of the endpoint whose token that was.
        held: True while the stream is open on which the answer passes; the request is known to run then.
        moved_to: address of the endpoint where it is booked in place of the chosen one; empty as nearly always.
        blamed: addresses of endpoints that were blamed for an attempt of it.
        relearnt: whether the index was told that its prefix went elsewhere.
        sharing: where its blocks are counted; None if nowhere, as nearly always.
    """

    decision: Decision
    learnt: Learnt
    prefill: Prefill
    load: Load
    place: Place
    tokens: int
    counted: bool
    seen_at: float
    first_token: float | None = None
    served: str | None = None
    held: bool = False
    moved_to: str = ""
    blamed: tuple[str, ...] = ()
    relearnt: bool = False
    sharing: Sharing | None = None

    @property
    def address(self) -> str:
        """Where it runs."""
        return self.moved_to or self.decision.chosen.address

    @property
    def later(self) -> int:
        """Those of its tokens that take no memory yet, on average over the time it runs: half of its answer."""
        return (self.tokens - self.decision.request.prompt_tokens) // 2


class Ledger:
    """Leases by decision id and loads by slot.

    Args:
        measure: tokens of so many leading blocks of a prompt, as the hasher cuts them.
        timeout: seconds after which a lease without an outcome is given up.
        renewal_timeout: the same once the access log has been seen to renew leases of running requests.
        limit: leases at most; those beyond it that were not heard of for longest are given up when `expire` is called.
    """

    def __init__(
        self,
        measure: Callable[[int], int] = int,
        *,
        timeout: float = 900.0,
        renewal_timeout: float = 45.0,
        limit: int = 100_000,
    ) -> None:
        self._limit = limit
        self._measure = measure
        self._timeout = timeout
        self._renewal_timeout = renewal_timeout
        self._renewed = False
        self._loads: dict[int, Load] = {}
        self._rows: dict[int, tuple[Sequence[int], list[Load]]] = {}
        self._idle = Load()
        self._leases: dict[str, Lease] = {}
        self.siblings = Siblings()

    def __len__(self) -> int:
        """Return the number of open leases."""
        return len(self._leases)

    @property
    def fill(self) -> float:
        """How many of the leases that there may be there are, as a share."""
        return len(self._leases) / self._limit

    @property
    def waiting_since(self) -> float | None:
        """When the lease that was not heard of for the longest was last heard of; None if there is none to hear of.

        Those whose answer passes on an open stream are known to run, and need no report.
        """
        return next((lease.seen_at for lease in self._leases.values() if not lease.held), None)

    def add(self, slot: int) -> None:
        """Begin to count for a slot that a new endpoint got."""
        self._loads[slot] = Load()
        self._rows.clear()

    def serve(self, slot: int, ranks: int) -> None:
        """Let so many data-parallel ranks serve a slot's queue; an unknown slot has none."""
        load = self._loads.get(slot)
        if load is None or load.ranks == ranks:
            return
        leases = self._leases.values() if load.in_flight else ()
        mine = (lease for lease in leases if lease.load is load and lease.counted)
        load.serve(ranks, [lease.place for lease in mine if lease.first_token is None])

    def remove(self, slot: int) -> None:
        """Stop counting for a slot; leases of its endpoint go on and end without effect on a successor."""
        self._loads.pop(slot, None)
        self._rows.clear()

    def load(self, slot: int) -> Load:
        """Return what is in flight at a slot; an unknown one has nothing in flight."""
        return self._loads.get(slot) or Load()

    def loads_of(self, slots: Sequence[int]) -> list[Load]:
        """Return what is in flight at each slot; not to be altered."""
        row = self._rows.get(id(slots))
        if row is not None and row[0] is slots:
            return row[1]
        loads = list(map(self._loads.get, slots, repeat(self._idle)))
        if type(slots) is tuple:  # what is altered by nobody may be looked up once
            if len(self._rows) >= _MOST_ROWS:
                self._rows.clear()
            self._rows[id(slots)] = slots, loads
        return loads

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
        request, load = decision.request, self._loads.get(decision.endpoints[0].slot) or Load()
        tokens, place = 0, NO_PLACE
        if counted:
            tokens = request.prompt_tokens + int(output)
            tells = request.stream and request.operation in GENERATING
            place = load.add(prefill, tokens, now, tells=tells, later=int(output) // 2)
        lease = Lease(decision, learnt, prefill, load, place, tokens, counted, now)
        self._leases[decision.id] = lease
        memory = decision.endpoints[0].kv_tokens
        if memory and counted and load.tokens > _CROWDED * memory:
            self._share(lease)
        if learnt.held is not None:
            self.siblings.begin(learnt.held)
        return lease

    def first_token(
        self, decision_id: str, now: float, served: str | None = None
    ) -> tuple[Lease, Service | None] | None:
        """Note a request's first token; None if it has no lease or answers already.

        Engines serve first come, first served: what was sent before it is prefilled too, what was sent after it is
        left to do, and the queue begins anew from now. A token of another endpoint than the chosen one (`served`, an
        address) says nothing of that queue.

        Returns:
            The lease, and what the chosen endpoint did up to the token; None if it is another's.
        """
        lease = self._leases.get(decision_id)
        if lease is None or lease.first_token is not None or not lease.counted:
            return None
        decision = lease.decision
        lease.first_token = now - decision.decided_at
        lease.served = served or decision.chosen.address
        if lease.served != decision.chosen.address:
            return lease, None
        return lease, lease.load.answer(lease.place, lease.prefill, decision.decided_at, now)

    def move(self, decision_id: str, address: str, slot: int, now: float) -> Lease | None:
        """Book a request at another endpoint than before, since it runs there.

        Returns:
            The lease that was moved; None if it is unknown, or where it belongs already.
        """
        lease = self._leases.get(decision_id)
        if lease is None or lease.address == address:
            return None
        lease.moved_to = address
        if lease.counted:
            _release(lease, now)
            if lease.first_token is None:
                lease.load.cancel(lease.place, lease.prefill.seconds, now)
            lease.load = self.load(slot)
            lease.place = lease.load.add(lease.prefill, lease.tokens, now, tells=False, later=lease.later)
        return lease

    def queue(self, slot: int, waiting: int, running: int, now: float) -> None:
        """Set a virtual queue right by the requests that an engine says are waiting and running."""
        load = self._loads.get(slot)
        if load is not None:
            load.correct(waiting, running, now)

    def renew(self, decision_id: str, now: float) -> bool:
        """Note that a request still runs; False if its lease is unknown."""
        self._renewed = True
        return self.touch(decision_id, now)

    def get(self, decision_id: str) -> Lease | None:
        """Return the lease of a decision."""
        return self._leases.get(decision_id)

    def hold(self, decision_id: str, *, held: bool) -> None:
        """Note whether the stream is open on which the answer passes; an unknown decision has none."""
        lease = self._leases.get(decision_id)
        if lease is not None:
            lease.held = held

    def is_held(self, decision_id: str) -> bool:
        """Tell whether the stream is open on which the answer passes."""
        lease = self._leases.get(decision_id)
        return lease is not None and lease.held

    def count_held(self) -> int:
        """Count the requests whose answers pass on streams that are open."""
        return sum(lease.held for lease in self._leases.values())

    def touch(self, decision_id: str, now: float) -> bool:
        """Note that a request was seen to run; False if its lease is unknown."""
        lease = self._leases.pop(decision_id, None)
        if lease is None:
            return False
        lease.seen_at = now
        self._leases[decision_id] = lease  # behind all that were heard of before
        return True

    def end(self, decision_id: str, now: float, *, answered_by: str | None = None) -> Lease | None:
        """End a lease and return it; None if it is unknown or ended already.

        Args:
            decision_id: whose.
            now: monotonic seconds.
            answered_by: address of the endpoint that answered to the end; None if none did. If it is the one where the
                request is booked, all that was sent there before is prefilled too; if not, and no token came, the
                request leaves its queue.
        """
        lease = self._leases.pop(decision_id, None)
        if lease is None:
            return None
        if lease.learnt.held is not None:
            self.siblings.end(lease.learnt.held)
        if not lease.counted:
            return lease
        load = lease.load
        _release(lease, now)
        if answered_by == (lease.moved_to or lease.decision.chosen.address):
            load.prefilled(lease.place, now)
        elif lease.first_token is None:
            load.cancel(lease.place, lease.prefill.seconds, now)
        return lease

    def find(self, request_id: str) -> Lease | None:
        """Return the lease of a request by the gateway's name for it; of those heard of lately, some thousands."""
        lately = islice(reversed(self._leases.values()), _MOST_SEARCHED)
        return next((lease for lease in lately if lease.decision.request.request_id == request_id), None)

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
        spare = len(self._leases) - self._limit
        for lease in self._leases.values():
            if lease.seen_at + limit > now and len(overdue) >= spare:
                break
            if not lease.held or lease.seen_at + self._timeout <= now:
                overdue.append(lease)
        for lease in overdue:
            self.end(lease.decision.id, now)
        return overdue

    def _lighten(self, before: float, now: float) -> None:
        for lease in self._leases.values():
            if lease.seen_at > before:
                break
            if lease.counted and not lease.held:
                lease.counted = False
                _release(lease, now)

    def _share(self, lease: Lease) -> None:
        learnt, load = lease.learnt, lease.load
        if not learnt.chain:
            return
        scale = lease.decision.request.prompt_tokens / learnt.estimated if learnt.estimated else 1.0
        if load.sharing is None:
            load.sharing = Sharing(self._measure, scale)
        lease.sharing = load.sharing
        lease.sharing.begin(learnt.chain, scale)


def _release(lease: Lease, now: float) -> None:
    lease.load.release(lease.tokens, now, lease.later, lease.place if lease.first_token is None else None)
    if lease.sharing is not None:
        lease.sharing.end(lease.learnt.chain)
        lease.sharing = None
