"""One attempt of Envoy at an endpoint that came to nothing, while its request may go on elsewhere.

Two may tell of it: the access log of attempts and, in full duplex, the stream of the request, which sees who answers in
the end. Whoever comes second is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ext_proc.core.health import HealthMonitor
from ext_proc.core.model import ILLNESS, Decision, Ending, Endpoint, Outcome
from ext_proc.core.reputation import Reputations


class Attempt(msgspec.Struct, gc=False):
    """What Envoy says of an attempt.

    Attributes:
        address: of the endpoint that was tried.
        ending: how it ended.
        seconds: how long it lasted.
        noted: whether the endpoint has been blamed for it.
        request_id: the gateway's name for the request.
    """

    address: str
    ending: Ending
    seconds: float = 0.0
    noted: bool = False
    request_id: str = ""

    @property
    def is_void(self) -> bool:
        """Whether nothing was begun, so that Envoy goes on to the next endpoint if there is one."""
        return self.ending in _VOID


NO_ATTEMPTS: Sequence[Attempt] = ()

_VOID = frozenset({Ending.CONNECT_FAILURE, Ending.RESET})

_MOST_TOLD = 4_096
"""Attempts that streams told of and whose entry in an access log may still come."""


class Blame:
    """Marks endpoints for attempts that failed there.

    Args:
        find: the endpoint that an address is now, if any.
        health: hears of each failure.
        reputations: the same.
    """

    def __init__(
        self, find: Callable[[str], Endpoint | None], health: HealthMonitor, reputations: Callable[[], Reputations]
    ) -> None:
        self._find = find
        self._health = health
        self._reputations = reputations
        self._told: dict[tuple[str, str], None] = {}

    def note(self, attempt: Attempt, now: float) -> None:
        """Blame the endpoint of a failed attempt, once; a client that left and a busy engine are no failure."""
        if attempt.noted or attempt.ending not in ILLNESS:
            return
        attempt.noted = True
        if (attempt.request_id, attempt.address) in self._told:
            del self._told[attempt.request_id, attempt.address]
            return
        endpoint = self._find(attempt.address)
        if endpoint is not None:
            self._put(endpoint, attempt.ending, now, now - attempt.seconds)

    def told(self, decision: Decision, outcome: Outcome, already: Sequence[str]) -> None:
        """Note that a stream told of attempts; an access log will tell of those again that it has not told of yet."""
        before = [endpoint.address for endpoint in decision.endpoints[: outcome.attempts - 1]]
        last = [outcome.served] if outcome.served is not None and outcome.ending in ILLNESS else []
        for address in (*before, *last):
            if address not in already and decision.request.request_id:
                self._told[decision.request.request_id, address] = None
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]

    def settle(
        self,
        decision: Decision,
        outcome: Outcome,
        served: Endpoint | None,
        attempts: Sequence[Attempt],
        now: float,
        already: Sequence[str] = (),
    ) -> bool:
        """Blame those that were tried before the last attempt; tell whether the last one has been blamed as well.

        Args:
            decision: by which the endpoints were named.
            outcome: of the request, which is that of its last attempt.
            served: the endpoint of the last attempt.
            attempts: those that Envoy reported as failed, in their order; empty where it reports none. Then it is
                taken to have followed the decision, and to have reached nobody before the last.
            now: monotonic seconds.
            already: addresses of those that were blamed for an attempt of this request before.
        """
        if not attempts:
            for endpoint in decision.endpoints[: outcome.attempts - 1]:
                if endpoint is not served and endpoint.address not in already and self._is_current(endpoint):
                    self._put(endpoint, Ending.CONNECT_FAILURE, now, decision.decided_at)
            return outcome.ending in ILLNESS and served is not None and served.address in already
        before = attempts[: outcome.attempts - 1]
        for attempt in before:
            self.note(attempt, now)
        return any(attempt.noted for attempt in attempts[len(before) :])

    def _is_current(self, endpoint: Endpoint) -> bool:
        known = self._find(endpoint.address)
        return known is not None and known.generation == endpoint.generation

    def _put(self, endpoint: Endpoint, ending: Ending, now: float, sent: float) -> None:
        if self._health.excuses(endpoint.slot, sent):
            return
        self._health.note(endpoint, ending, now, sent)
        self._reputations().note(endpoint, ending, now)
