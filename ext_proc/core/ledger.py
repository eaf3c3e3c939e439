"""Work in flight: a lease per dispatched request, and a virtual prefill queue per endpoint.

The queue (B, a point in time) says when an endpoint will have prefilled all that was sent to it; it grows by each
dispatch and drains by itself as time passes. Counting at dispatch, not at a scrape, is what keeps a burst from
landing on one endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ext_proc.core.model import BlockHash, Decision, InferenceRequest

_MEMORY = 0.98
_LONGEST_OUTPUT = 65_536


class Load(msgspec.Struct, gc=False):
    """What is in flight at one endpoint.

    Attributes:
        in_flight: requests (n).
        tokens: prompt and expected output tokens of those requests (M).
        busy_until: when the virtual prefill queue is empty (B), monotonic seconds.
    """

    in_flight: int = 0
    tokens: int = 0
    busy_until: float = 0.0


class Learnt(msgspec.Struct, frozen=True, gc=False):
    """What a decision taught the index, so that it can be taken back.

    Attributes:
        chain: hash chain of the prompt; empty if nothing was learnt.
        depth: leading blocks that the endpoint held before.
        stamp: what `ObservedIndex.learn` returned.
    """

    chain: Sequence[BlockHash] = ()
    depth: int = 0
    stamp: int = 0


NOTHING_LEARNT = Learnt()


class Lease(msgspec.Struct, gc=False):
    """One request's claim on an endpoint, from its decision to its outcome.

    Attributes:
        decision: what it was decided by.
        learnt: what it taught the index.
        load: of the endpoint, even if that is gone by now.
        tokens: prompt and expected output tokens claimed.
        counted: False for requests that cost an engine next to nothing.
        seen_at: when it was taken or last renewed, monotonic seconds.
    """

    decision: Decision
    learnt: Learnt
    load: Load
    tokens: int
    counted: bool
    seen_at: float


class Ledger:
    """Leases by decision id and loads by slot.

    Args:
        timeout: seconds after which a lease without an outcome is given up.
        renewal_timeout: the same once the access log has been seen to renew leases of running requests.
        expected_output: tokens assumed for an answer until some are known.
        expected_residence: seconds assumed from dispatch to end until some are known.
    """

    def __init__(
        self,
        *,
        timeout: float = 900.0,
        renewal_timeout: float = 45.0,
        expected_output: float = 300.0,
        expected_residence: float = 10.0,
    ) -> None:
        self.output = expected_output
        self.residence = expected_residence
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
        *,
        seconds: float,
        output: float,
        now: float,
        counted: bool = True,
    ) -> Lease:
        """Book a decision at its chosen endpoint.

        Args:
            decision: what to book.
            learnt: what it taught the index.
            seconds: its own prefill time (S).
            output: tokens the answer is expected to have.
            now: monotonic seconds.
            counted: False for requests that cost an engine next to nothing.
        """
        tokens = decision.request.prompt_tokens + int(output) if counted else 0
        load = self.load(decision.chosen.slot)
        lease = Lease(decision, learnt, load, tokens, counted, now)
        if counted:
            load.in_flight += 1
            load.tokens += tokens
            load.busy_until = max(load.busy_until, now) + seconds
        self._leases[decision.id] = lease
        return lease

    def expected_output(self, request: InferenceRequest) -> float:
        """Return the tokens the answer is expected to have: the learnt mean, or the client's limit if lower."""
        limit = request.output_tokens
        return self.output if limit is None else max(min(self.output, limit), 0.0)

    def renew(self, decision_id: str, now: float) -> bool:
        """Note that a request still runs; False if its lease is unknown."""
        self._renewed = True
        lease = self._leases.pop(decision_id, None)
        if lease is None:
            return False
        lease.seen_at = now
        self._leases[decision_id] = lease  # behind all that were heard of before
        return True

    def end(self, decision_id: str, now: float) -> Lease | None:
        """End a lease and return it; None if it is unknown or ended already."""
        lease = self._leases.pop(decision_id, None)
        if lease is not None and lease.counted:
            _release(lease, now)
        return lease

    def learn(self, output_tokens: int | None, residence: float) -> None:
        """Learn from a finished answer how long answers are, in tokens, and how long they stay, in seconds.

        An engine that reports more tokens than any generates does not get to ruin the mean.
        """
        if output_tokens is not None:
            self.output += (1 - _MEMORY) * (min(output_tokens, _LONGEST_OUTPUT) - self.output)
        self.residence += (1 - _MEMORY) * (residence - self.residence)

    def expire(self, now: float) -> list[Lease]:
        """Give up the leases whose outcome is overdue and return them: their log entries were lost."""
        limit = self._renewal_timeout if self._renewed else self._timeout
        overdue: list[Lease] = []
        for lease in self._leases.values():
            if lease.seen_at + limit > now:
                break
            overdue.append(lease)
        for lease in overdue:
            self.end(lease.decision.id, now)
        return overdue


def _release(lease: Lease, now: float) -> None:
    load = lease.load
    load.in_flight -= 1
    load.tokens -= lease.tokens
    if not load.in_flight:
        load.busy_until = min(load.busy_until, now)
