"""The states of health of an endpoint, which may follow which, and by what policy."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class HealthState(enum.StrEnum):
    """Where an endpoint stands.

    A warming one has yet to show that it can serve; a degraded one serves, with something against it; an ejected one
    is left alone; a probing one is tried with one request at a time.
    """

    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    EJECTED = "ejected"
    PROBING = "probing"


EDGES: Mapping[HealthState, frozenset[HealthState]] = MappingProxyType(
    {
        HealthState.WARMING: frozenset({HealthState.READY}),
        HealthState.READY: frozenset({HealthState.DEGRADED, HealthState.EJECTED, HealthState.WARMING}),
        HealthState.DEGRADED: frozenset({HealthState.READY, HealthState.EJECTED, HealthState.WARMING}),
        HealthState.EJECTED: frozenset({HealthState.PROBING, HealthState.WARMING}),
        HealthState.PROBING: frozenset({HealthState.READY, HealthState.EJECTED, HealthState.WARMING}),
    }
)
"""Which states may follow a state."""

OUT = frozenset({HealthState.EJECTED, HealthState.PROBING})
"""States of endpoints that the pool has lost, which the policy allows only so many of."""


SERVING = frozenset({HealthState.READY, HealthState.DEGRADED})
"""States of endpoints that requests are sent to."""


class Verdict(enum.StrEnum):
    """What an active probe found."""

    GOOD = "good"
    LOADING = "loading"
    BUSY = "busy"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class HealthPolicy(msgspec.Struct, frozen=True):
    """When an endpoint is ejected, and how it comes back.

    Attributes:
        failures: ill outcomes in a row that eject.
        failure_ratio: share of ill outcomes, lately, that ejects; half of it degrades.
        least_samples: outcomes without which that share says nothing.
        ejection: seconds of the first ejection.
        max_ejection: seconds no ejection exceeds.
        max_ejected: share of the endpoints of a pool that are there (not taken out, unready or asleep) that may be
            ejected at one time; one of several always may.
        forgiveness: seconds of health after which one ejection of the past no longer counts.
        trial: seconds after which a trial request without an outcome makes room for another.
        slow_start: seconds in which a new or returning endpoint comes to its full share; 0 gives it at once.
        good_probes: good probes in a row that end warming, or an ejection that probes confirmed.
        failed_probes: failed probes in a row that eject an endpoint which has answered nobody since.
        silence: seconds without metrics, while others' can be read, that count as much as that.
        slow: times the latency of its peers from which on an endpoint is degraded.
    """

    failures: int = 2
    failure_ratio: float = 0.2
    least_samples: int = 10
    ejection: float = 2.5
    max_ejection: float = 10.0
    max_ejected: float = 0.5
    forgiveness: float = 60.0
    trial: float = 30.0
    slow_start: float = 15.0
    good_probes: int = 2
    failed_probes: int = 2
    silence: float = 10.0
    slow: float = 3.0


class HealthStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's health, for people.

    Attributes:
        state: where it stands.
        since: monotonic seconds of the last change; None if there was none.
        evidence: why it changed.
        until: monotonic seconds at which an ejection, or a trial, ends; None where there is none.
        share: of the requests for which it is a candidate, the share that may be sent to it.
        failure_ratio: share of ill outcomes lately.
        ejections: ejections that still count for the length of the next one.
    """

    state: HealthState = HealthState.READY
    since: float | None = None
    evidence: str = ""
    until: float | None = None
    share: float = 1.0
    failure_ratio: float = 0.0
    ejections: int = 0
