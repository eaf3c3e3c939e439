"""What became of decisions: one outcome settles the lease, teaches health, index and ledger, and is observed once."""

from __future__ import annotations

from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Lease, Ledger
from ext_proc.core.model import Ending, Endpoint, Outcome
from ext_proc.core.observer import Observer
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex

_NOTHING_CACHED = frozenset(
    {Ending.CONNECT_FAILURE, Ending.RESET, Ending.SERVER_ERROR, Ending.OVERLOADED, Ending.CLIENT_ERROR, Ending.LOCAL}
)
"""Endings after which the engine cannot be believed to hold the prompt."""


class Feedback:
    """Joins outcomes to decisions by decision id; each lease is settled once, by its outcome or by its expiry."""

    def __init__(
        self,
        *,
        registry: Registry,
        ledger: Ledger,
        index: ObservedIndex,
        health: HealthMonitor,
        picker: EndpointPicker,
        observer: Observer,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._index = index
        self._health = health
        self._picker = picker
        self._observer = observer

    def renew(self, decision_id: str, now: float) -> bool:
        """Note that Envoy still runs a request; False if its decision is unknown."""
        return self._ledger.renew(decision_id, now)

    def settle(self, outcome: Outcome, now: float) -> bool:
        """Learn from an outcome; False if its decision is unknown or settled already."""
        lease = self._ledger.end(outcome.decision_id, now)
        if lease is None:
            return False
        self._note_health(lease, outcome, now)
        self._correct_index(lease, outcome)
        if outcome.ending is Ending.OK:
            if lease.counted:
                self._ledger.learn(outcome.usage.completion_tokens, outcome.duration)
            if outcome.response_id:
                self._picker.responses.tie(outcome.response_id, _served(lease, outcome).address, now)
        self._observer.finished(lease.decision, outcome)
        return True

    def expire(self, now: float) -> int:
        """Settle the leases whose log entry is overdue; return how many there were."""
        overdue = self._ledger.expire(now)
        for lease in overdue:
            self._observer.finished(lease.decision, Outcome(decision_id=lease.decision.id, ending=Ending.LOST))
        return len(overdue)

    def _note_health(self, lease: Lease, outcome: Outcome, now: float) -> None:
        endpoints = lease.decision.endpoints
        # Envoy tries the next endpoint only if the one before was not reached or had not begun.
        for endpoint in endpoints[: outcome.attempts - 1]:
            if self._is_current(endpoint):
                self._health.note(endpoint, Ending.CONNECT_FAILURE, now)
        served = _served(lease, outcome)
        if self._is_current(served):
            self._health.note(served, outcome.ending, now)

    def _correct_index(self, lease: Lease, outcome: Outcome) -> None:
        if not lease.chain:
            return
        chosen, served = lease.decision.chosen, _served(lease, outcome)
        useless = outcome.ending in _NOTHING_CACHED
        if (served is not chosen or useless) and self._is_current(chosen):
            self._index.forget(chosen.slot, lease.chain[lease.learnt_from :])
        if served is not chosen and not useless and self._is_current(served):
            self._index.learn(served.slot, lease.chain)

    def _is_current(self, endpoint: Endpoint) -> bool:
        known = self._registry.snapshot.by_address.get(endpoint.address)
        return known is not None and known.generation == endpoint.generation


def _served(lease: Lease, outcome: Outcome) -> Endpoint:
    """Return the endpoint of the last attempt; the chosen one where Envoy does not say."""
    endpoints = lease.decision.endpoints
    for endpoint in endpoints:
        if endpoint.address == outcome.served:
            return endpoint
    return endpoints[0]
