"""Passive health: outcomes in, states out; an ill endpoint is ejected and let back in one request at a time.

A client's error is not illness, and neither is a busy engine. A refused connection ejects at once, other illness after
a few in a row. Each ejection lasts twice as long as the one before. If every candidate is ejected, none is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import inf

import msgspec

from ext_proc.core.generator import Generator
from ext_proc.core.model import ILLNESS, Ending, Endpoint, InferenceRequest
from ext_proc.core.observer import NoObserver, Observer


class HealthState(enum.StrEnum):
    """Where an endpoint stands."""

    READY = "ready"
    EJECTED = "ejected"
    PROBING = "probing"


class HealthPolicy(msgspec.Struct, frozen=True):
    """When an endpoint is ejected.

    Attributes:
        failures: ill outcomes in a row that eject.
        ejection: seconds of the first ejection.
        max_ejection: seconds no ejection exceeds.
        probe_timeout: seconds after which a probe without an outcome makes room for another.
    """

    failures: int = 2
    ejection: float = 5.0
    max_ejection: float = 60.0
    probe_timeout: float = 30.0


class _Record(msgspec.Struct):
    failures: int = 0
    ejections: int = 0
    state: HealthState = HealthState.READY
    until: float = 0.0
    ejected_at: float = -inf


class HealthMonitor:
    """The state of every endpoint, by slot; a gate for those that may be chosen."""

    name = "health"

    def __init__(self, policy: HealthPolicy | None = None, observer: Observer | None = None) -> None:
        self._policy = policy or HealthPolicy()
        self._observer = observer or NoObserver()
        self._records: dict[int, _Record] = {}
        self._unwell: set[int] = set()

    def remove(self, slot: int) -> None:
        """Forget what is known of a slot."""
        self._records.pop(slot, None)
        self._unwell.discard(slot)

    @property
    def all_ready(self) -> bool:
        """Whether no endpoint is ejected or on probation."""
        return not self._unwell

    def state(self, slot: int) -> HealthState:
        """Return the state of a slot; one without history is ready."""
        record = self._records.get(slot)
        return record.state if record else HealthState.READY

    def eligible(self, candidates: Sequence[Endpoint], now: float) -> Sequence[Endpoint]:
        """Return the candidates that may be chosen; all of them if all are ejected."""
        if not self._unwell:
            return candidates
        left = [endpoint for endpoint in candidates if self.may_serve(endpoint.slot, now)]
        return left or candidates

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,  # noqa: ARG002  health is the same for all
        now: float,
        generator: Generator,  # noqa: ARG002  and certain
    ) -> Sequence[Endpoint]:
        """Return the candidates that may be chosen; all of them if all are ejected."""
        return self.eligible(candidates, now)

    def may_serve(self, slot: int, now: float) -> bool:
        """Tell whether a slot may be chosen, for a probe at least."""
        return slot not in self._unwell or self._records[slot].until <= now

    def dispatched(self, endpoint: Endpoint, now: float) -> None:
        """Note that a request was sent; for an endpoint whose ejection is over, this is the probe."""
        if endpoint.slot not in self._unwell:
            return
        record = self._records[endpoint.slot]
        if record.until <= now:
            record.until = now + self._policy.probe_timeout
            self._change(endpoint, record, HealthState.PROBING, "ejection is over")

    def note(self, endpoint: Endpoint, ending: Ending, now: float, sent: float | None = None) -> None:
        """Learn from how an attempt at the endpoint ended.

        Args:
            endpoint: who was tried.
            ending: how it ended.
            now: monotonic seconds.
            sent: when the request was sent; None if that is not known. What was sent before the latest ejection
                has no say any more: the ejection answered it.
        """
        record = self._records.get(endpoint.slot)
        if record is None and ending is Ending.OK:
            return
        if record is not None and sent is not None and sent < record.ejected_at:
            return
        if ending in ILLNESS:
            self._ill(endpoint, ending, now)
        elif ending in (Ending.OK, Ending.CLIENT_ERROR):
            self._well(endpoint)

    def _ill(self, endpoint: Endpoint, ending: Ending, now: float) -> None:
        record = self._records.setdefault(endpoint.slot, _Record())
        record.failures += 1
        refused = ending is Ending.CONNECT_FAILURE
        if record.state is HealthState.EJECTED or not (
            refused or record.state is HealthState.PROBING or record.failures >= self._policy.failures
        ):
            return
        policy = self._policy
        # The exponent is bounded so that a week of ejections does not overflow a float.
        lasts = min(policy.ejection * 2 ** min(record.ejections, 20), policy.max_ejection)
        record.ejections += 1
        record.until = now + lasts
        record.ejected_at = now
        self._unwell.add(endpoint.slot)
        evidence = f"{record.failures} x ill, last: {ending}; ejected for {lasts:g} s"
        self._change(endpoint, record, HealthState.EJECTED, evidence)

    def _well(self, endpoint: Endpoint) -> None:
        record = self._records.get(endpoint.slot)
        # Answers of requests sent before the ejection say nothing about the time since.
        if record is None or record.state is HealthState.EJECTED:
            return
        if record.state is HealthState.PROBING:
            self._unwell.discard(endpoint.slot)
            self._change(endpoint, record, HealthState.READY, "the probe was answered")
            record.failures = 0
        elif record.failures:
            record.failures = 0
        else:
            record.ejections = 0

    def _change(self, endpoint: Endpoint, record: _Record, state: HealthState, evidence: str) -> None:
        record.state = state
        self._observer.health_changed(endpoint, state, evidence)
