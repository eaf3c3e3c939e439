"""What is expected of answers."""

from __future__ import annotations

import pytest

from ext_proc.core.expectations import Expectations


@pytest.mark.parametrize(("limit", "expected"), [(None, 300.0), (16, 16.0), (0, 0.0), (-1, 0.0), (4096, 300.0)])
def test_answers_are_expected_as_long_as_usual(limit: int | None, expected: float) -> None:
    """The learnt mean counts unless the client's limit is lower; nonsense never makes it negative."""
    assert Expectations().overall.output_within(limit) == expected


def test_length_and_residence_are_learnt() -> None:
    """Finished answers move the expectations towards what was seen; a missing count moves only the residence."""
    expectations = Expectations()
    expectations.learn("a", None, 20.0)
    assert (expectations.of("a").output, expectations.of("a").residence) == (300.0, pytest.approx(10.2))
    expectations.learn("a", 400, 20.0)
    assert expectations.of("a").output == pytest.approx(302.0)


def test_each_model_has_its_own_and_a_new_one_begins_with_the_mean() -> None:
    """A model with short answers is not expected to give long ones because another one does."""
    expectations = Expectations()
    for _ in range(500):
        expectations.learn("long", 2000, 60.0)
    assert expectations.of("new").output == pytest.approx(2000, rel=0.01)
    for _ in range(500):
        expectations.learn("short", 10, 1.0)
    assert expectations.of("short").output == pytest.approx(10, rel=0.1)
    assert expectations.of("long").output == pytest.approx(2000, rel=0.01)


def test_an_unnamed_model_counts_over_all_only() -> None:
    """What strangers call their model takes no memory."""
    expectations = Expectations()
    expectations.learn(None, 400, 10.0)
    assert expectations.of(None) is expectations.of("x") is expectations.overall
    assert expectations.overall.output == pytest.approx(302.0)


def test_tokens_per_estimated_token_are_learnt() -> None:
    """Text that has more tokens than was estimated is counted higher from then on, and within reason."""
    expectations = Expectations()
    assert expectations.of("a").scale == 1.0
    for _ in range(500):
        expectations.learn_tokens("a", 1000, 1300)
        expectations.learn_tokens("odd", 1, 10_000_000)
    assert expectations.of("a").scale == pytest.approx(1.3, rel=0.01)
    assert expectations.of("odd").scale == 5.0


def test_one_absurd_count_does_little() -> None:
    """A single prompt with an unlikely count does not turn the estimate over."""
    expectations = Expectations()
    expectations.learn_tokens("a", 100, 500)
    assert 1.0 < expectations.of("a").scale < 1.2
