"""One attempt of Envoy at an endpoint that came to nothing, while its request may go on elsewhere."""

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
    """

    address: str
    ending: Ending
    seconds: float = 0.0
    noted: bool = False


NO_ATTEMPTS: Sequence[Attempt] = ()


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

    def note(self, attempt: Attempt, now: float) -> None:
        """Blame the endpoint of a failed attempt, once; a client that left and a busy engine are no failure."""
        if attempt.noted or attempt.ending not in ILLNESS:
            return
        attempt.noted = True
        endpoint = self._find(attempt.address)
        if endpoint is not None:
            self._put(endpoint, attempt.ending, now, now - attempt.seconds)

    def settle(
        self, decision: Decision, outcome: Outcome, served: Endpoint | None, attempts: Sequence[Attempt], now: float
    ) -> bool:
        """Blame those that were tried before the last attempt; tell whether the last one has been blamed as well.

        Args:
            decision: by which the endpoints were named.
            outcome: of the request, which is that of its last attempt.
            served: the endpoint of the last attempt.
            attempts: those that Envoy reported as failed, in their order; empty where it reports none. Then it is
                taken to have followed the decision, and to have reached nobody before the last.
            now: monotonic seconds.
        """
        if not attempts:
            for endpoint in decision.endpoints[: outcome.attempts - 1]:
                if endpoint is not served and self._is_current(endpoint):
                    self._put(endpoint, Ending.CONNECT_FAILURE, now, decision.decided_at)
            return False
        before = attempts[: outcome.attempts - 1]
        for attempt in before:
            self.note(attempt, now)
        return any(attempt.noted for attempt in attempts[len(before) :])

    def _is_current(self, endpoint: Endpoint) -> bool:
        known = self._find(endpoint.address)
        return known is not None and known.generation == endpoint.generation

    def _put(self, endpoint: Endpoint, ending: Ending, now: float, sent: float) -> None:
        self._health.note(endpoint, ending, now, sent)
        self._reputations().note(endpoint, ending, now)
