"""Moves endpoints from one state of health to another, as far as the policy allows."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from math import inf

from ext_proc.core.health_gate import HealthGate
from ext_proc.core.health_records import HealthRecord, Marks, Members, allowed
from ext_proc.core.health_states import OUT, SERVING, HealthPolicy, HealthState, HealthStatus
from ext_proc.core.model import Endpoint
from ext_proc.core.observer import Observer
from ext_proc.core.slow_start import THROTTLED, ramp, share

_CLEAN = 0.01


def nobody() -> AbstractSet[int]:
    """Miss no slot."""
    return frozenset()


class HealthBook:
    """The records of endpoints, by slot; one without a record is ready.

    Attributes:
        policy: by which endpoints are judged.
        probing: whether active probes run.
        members: which slots belong to which pool.
        records: endpoints that something is known of.
        special: those of them that are not simply ready, which a decision must look at.
        gate: sorts candidates by those.
        absent: names the slots that get no new request whatever their health: taken out, unready or asleep.
    """

    def __init__(self, policy: HealthPolicy, observer: Observer) -> None:
        self.policy = policy
        self.probing = False
        self.members = Members()
        self.records: dict[int, HealthRecord] = {}
        self.special: dict[int, HealthRecord] = {}
        self.gate = HealthGate(self.special)
        self.absent: Callable[[], AbstractSet[int]] = nobody
        self._observer = observer
        self._out = Marks()
        self._silent = Marks()

    def record(self, endpoint: Endpoint) -> HealthRecord:
        """Return the record of an endpoint, perhaps a new one."""
        record = self.records.get(endpoint.slot)
        if record is None:
            self.members.know(endpoint)
            record = self.records[endpoint.slot] = HealthRecord(endpoint)
        return record

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self.members.remove(slot)
        self.forget(slot)

    def forget(self, slot: int) -> None:
        """Forget what is known of a slot, which stays."""
        record = self.records.pop(slot, None)
        if record is not None:
            self._out.put(record.endpoint, marked=False)
            self._silent.put(record.endpoint, marked=False)
        if self.special.pop(slot, None) is not None:
            self.gate.forget()

    def sort(self, record: HealthRecord) -> None:
        """Show a record to the gate, or no longer."""
        self._out.put(record.endpoint, marked=record.state in OUT)
        if record.is_special:
            self.special[record.endpoint.slot] = record
        else:
            self.special.pop(record.endpoint.slot, None)
        self.gate.forget()

    def hear(self, record: HealthRecord, now: float, *, answered: bool) -> None:
        """Note whether an endpoint's metrics can be read."""
        if answered:
            record.evidence.silent_since = None
        elif record.evidence.silent_since is None:
            record.evidence.silent_since = now
        self._silent.put(record.endpoint, marked=not answered)

    def change(self, record: HealthRecord, state: HealthState, now: float, found: str, reason: str = "") -> None:
        """Put an endpoint into a state.

        Args:
            record: of the endpoint.
            state: the state; the same as before only keeps why.
            now: monotonic seconds.
            found: the evidence, for people.
            reason: why it is ejected, a metric label; empty for other states.
        """
        record.because = found
        if record.state is not state:
            record.state, record.since = state, now
            self._observer.health_changed(record.endpoint, state, found, reason)

    def eject(self, record: HealthRecord, reason: str, found: str, now: float) -> None:
        """Leave an endpoint alone for a while; or, if too many of its pool are, give it a small share."""
        policy = self.policy
        if not self._has_room(record):
            record.throttled, record.slow_from = True, None
            self.change(record, HealthState.DEGRADED, now, f"{found}; not ejected, since too many are")
            self.sort(record)
            return
        record.ejections = record.remembered(now, policy.forgiveness)
        # The exponent is bounded so that a week of ejections does not overflow a float.
        lasts = min(policy.ejection * 2 ** min(record.ejections, 20), policy.max_ejection)
        record.ejections += 1
        record.until, record.ejected_at = now + lasts, now
        record.confirmed = record.evidence.failed_probes > 0
        record.evidence.good_probes = 0
        record.slow_from, record.throttled = None, False
        self.change(record, HealthState.EJECTED, now, f"{found}; ejected for {lasts:g} s", reason)
        self.sort(record)

    def warm(self, record: HealthRecord, now: float, found: str) -> None:
        """Wait until an endpoint shows that it can serve."""
        record.slow_from, record.throttled = None, False
        self.change(record, HealthState.WARMING, now, found)
        self.sort(record)

    def start(self, record: HealthRecord, now: float, found: str) -> None:
        """Let an endpoint serve, with a small share at first."""
        record.evidence.halve(self.policy.least_samples)
        record.returned_at = now
        record.loading, record.confirmed = False, False
        slowly = self.policy.slow_start > 0 and self.members.peers(record.endpoint) > 1
        record.slow_from = now if slowly else None
        self.change(record, HealthState.READY, now, found)
        self.sort(record)

    def weigh(self, record: HealthRecord, now: float) -> None:
        """Let a serving endpoint be ready or degraded, as the evidence has it, or forget that there was any."""
        evidence, policy = record.evidence, self.policy
        if record.state not in SERVING:
            return
        is_alone = evidence.silent_since is not None and not self._are_most_silent(record)
        lifeless = evidence.lifeless(now, policy.silence if is_alone else 0.0)
        if lifeless >= policy.failed_probes and evidence.proven and not record.throttled:
            found = f"{evidence.told}{', its metrics cannot be read' if is_alone else ''}"
            self.eject(record, "probe" if evidence.failed_probes else "silent", found, now)
            return
        against = record.against(now, policy, lifeless, silent=is_alone)
        if record.throttled and not against:
            record.throttled, record.slow_from = False, now
            self.sort(record)
        if against and record.state is HealthState.READY:
            self.change(record, HealthState.DEGRADED, now, against)
        elif not against and record.state is HealthState.DEGRADED:
            self.change(record, HealthState.READY, now, "nothing is against it any more")
        if record.is_clean(now, policy, _CLEAN):
            self.records.pop(record.endpoint.slot, None)

    def advance(self, record: HealthRecord, now: float) -> None:
        """Let time count against and for an endpoint, and not what probes said if they no longer run."""
        if not self.probing:
            record.evidence.believe_in_life()
            record.evidence.proven = True
            if record.state is HealthState.WARMING:
                self.start(record, now, "nobody probes it any more")
        if record.slow_from == inf:
            record.slow_from = now
            self.gate.forget()
        elif record.slow_from is not None and now >= record.slow_from + self.policy.slow_start:
            record.slow_from = None
            self.sort(record)
        self.weigh(record, now)

    def status(self, slot: int, now: float) -> HealthStatus:
        """Return what people want to know of a slot."""
        record = self.records.get(slot)
        if record is None:
            return HealthStatus()
        return HealthStatus(
            state=record.state,
            since=record.since,
            evidence=record.because,
            until=record.until if record.state in OUT else None,
            share=self._share(record, now),
            failure_ratio=record.evidence.ratio,
            ejections=record.remembered(now, self.policy.forgiveness),
        )

    def panics(self) -> dict[str, bool]:
        """Tell of each pool whether ill endpoints are used: all that are present are ill, or some throttled."""
        result, absent = {}, self.absent()
        for pool, slots in self.members.pools.items():
            left = slots - absent
            records = [record for slot in left if (record := self.special.get(slot)) is not None]
            is_lost = 0 < len(records) == len(left) and all(record.state in OUT for record in records)
            result[pool] = is_lost or any(record.throttled for record in records)
        return result

    def _share(self, record: HealthRecord, now: float) -> float:
        if record.state not in SERVING:
            return 0.0
        slots, get = self.members.pools.get(record.endpoint.pool, frozenset[int]()), self.special.get
        peers = sum((other := get(slot)) is None or other.state in SERVING for slot in slots)
        if record.throttled:
            return share(THROTTLED, peers)
        risen = 1.0 if record.slow_from is None else ramp(record.slow_from, now, self.policy.slow_start)
        return share(risen, peers) if risen < 1.0 else 1.0

    def _has_room(self, record: HealthRecord) -> bool:
        absent = self.absent()
        if record.state in OUT or record.endpoint.slot in absent:
            return True
        pool = record.endpoint.pool
        present = self.members.present(pool, absent)
        return self._out.count(pool, absent) < allowed(present, self.policy.max_ejected)

    def _are_most_silent(self, record: HealthRecord) -> bool:
        """Tell whether the metrics of half of the pool cannot be read, which then says nothing of one endpoint."""
        absent, pool = self.absent(), record.endpoint.pool
        present = self.members.present(pool, absent)
        return 2 * self._silent.count(pool, absent) >= present > 1
