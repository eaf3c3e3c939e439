"""Requests that were told when to come back: each is kept a place in time, and known again by its content.

Without that, whoever obeys Retry-After meets the newcomers of that moment and is refused again, and under lasting
overload nobody who was refused is ever served. So the places in time follow one another as the endpoints can serve
them, and who comes back when told to goes before who is new.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

import msgspec

from ext_proc.core.generator import Generator
from ext_proc.core.pace import Rate
from ext_proc.core.tally import Tally

LONGEST_RETRY_AFTER = 600
"""Seconds; whoever would have to wait longer does better to ask somebody else."""

_LEAST_MORE = 0.05
"""Share that is added for what no prediction sees: ends of requests that are heard of late, a slower engine."""

_SPREAD = 0.1
"""Share that is added at random, so that those who were refused together do not come back together."""

_EXPECTED_SHARE = 0.75
"""Share of the places that is counted on before it is seen who gets them: some may go to higher priorities."""

_LEAST_RATE = 1e-3

_GRACE = 10.0
"""Seconds after its time that a promise still holds: clients add back-off of their own."""


class Promise(msgspec.Struct, frozen=True, gc=False):
    """When a request may come back, and what it will hold then.

    Attributes:
        due: the time that it was told, monotonic seconds.
        priority: its priority.
        cost: tokens, prompt and expected answer.
    """

    due: float
    priority: int
    cost: float


class Promises:
    """What one pool has promised, by the content of requests.

    Args:
        limit: promises at most; beyond it the oldest is forgotten.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tally = Tally()
        self._made: OrderedDict[int, Promise] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are outstanding."""
        return len(self._made)

    def make(self, content: int, promise: Promise) -> None:
        """Promise a place; `content` is a hash of the request."""
        self.take(content)
        self._made[content] = promise
        self.tally.add(promise.priority, promise.cost)
        while len(self._made) > self.limit:
            self.take(next(iter(self._made)))

    def find(self, content: int) -> Promise | None:
        """Return what was promised to a request."""
        return self._made.get(content)

    def take(self, content: int) -> None:
        """Forget what was promised to a request; nothing is no error."""
        promise = self._made.pop(content, None)
        if promise is not None:
            self.tally.remove(promise.priority, promise.cost)

    def expire(self, now: float) -> None:
        """Forget whoever did not come back; made in the order of their times, near enough."""
        while self._made:
            content, promise = next(iter(self._made.items()))
            if promise.due + _GRACE > now:
                return
            self.take(content)


def retry_after(wait: float, generator: Generator) -> int:
    """Return whole seconds for Retry-After, at least 1 and not before `wait` seconds are over, spread a little."""
    return min(max(ceil(wait * (1.0 + _LEAST_MORE + _SPREAD * generator.random())), 1), LONGEST_RETRY_AFTER)


def predicted_wait(requests: int, tokens: float, rate: Rate) -> float:
    """Return the seconds until so much in front, the request itself included, has found places.

    Args:
        requests: requests in front, with the one that asks.
        tokens: tokens of those, prompts and expected answers; 0 if no cap counts tokens.
        rate: how fast places are given.
    """
    by_requests = requests / max(rate.requests, _LEAST_RATE)
    by_tokens = tokens / max(rate.tokens, _LEAST_RATE)
    return max(by_requests, by_tokens)


def expected_rate(in_flight: int, tokens: float, residence: float) -> Rate:
    """Return how fast places are expected to come free: as fast as requests end (Little's law), less some.

    Args:
        in_flight: requests in flight at the endpoints.
        tokens: tokens that those hold.
        residence: seconds that a request stays.
    """
    seconds = max(residence, _LEAST_RATE) / _EXPECTED_SHARE
    return Rate(max(in_flight, 1) / seconds, max(tokens, 1.0) / seconds)
