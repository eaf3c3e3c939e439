"""When the refused may come back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.promises import LONGEST_RETRY_AFTER, Promise, Promises, expected_rate, predicted_wait, retry_after

COUNT = st.integers(0, 10_000)
TOKENS = st.floats(1, 1e9)


class Fixed:
    """A generator that always says the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        """Return it."""
        return self.number


def test_places_come_free_as_fast_as_requests_end() -> None:
    """With 8 in flight that stay 3 s, two places a second can be counted on: the tenth waits 5 s."""
    assert predicted_wait(10, 0.0, expected_rate(8, 0.0, 3.0)) == pytest.approx(5.0)
    assert predicted_wait(1, 3000.0, expected_rate(100, 6000.0, 3.0)) == pytest.approx(2.0)


@given(COUNT, COUNT, TOKENS, TOKENS, st.integers(1, 500), TOKENS, st.floats(0.01, 100), st.floats(0, 0.99))
def test_retry_after_is_monotone_in_the_load(
    requests: int,
    more: int,
    tokens: float,
    more_tokens: float,
    in_flight: int,
    held: float,
    residence: float,
    drawn: float,
) -> None:
    """More in front never means to come back sooner."""
    seconds = [
        retry_after(predicted_wait(ahead, cost, expected_rate(in_flight, held, residence)), Fixed(drawn))
        for ahead, cost in ((requests, tokens), (requests + more, tokens + more_tokens))
    ]
    assert 1 <= seconds[0] <= seconds[1] <= LONGEST_RETRY_AFTER


def test_retry_after_is_spread_and_never_too_early() -> None:
    """Those refused together do not come back together; F11: at least a second, with jitter."""
    generator = random.Random(1)
    told = {retry_after(100.0, generator) for _ in range(100)}
    assert len(told) > 5
    assert min(told) >= 100
    assert retry_after(0.0, generator) == 1


def test_promises_are_bounded_and_forgotten() -> None:
    """The oldest goes first, and who does not come back is forgotten; the sums follow."""
    promises = Promises(limit=3)
    for number in range(1, 6):
        promises.make(number, Promise(due=float(number), priority=0, cost=10.0))
    assert len(promises) == 3
    assert promises.find(1) is None
    assert promises.tally.before(0) == (3, 30.0)
    promises.expire(14.5)
    assert promises.find(4) is None
    assert promises.find(5) is not None
    promises.take(5)
    assert promises.tally.before(-100) == (0, 0)
