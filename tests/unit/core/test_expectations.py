"""What is expected of answers."""

from __future__ import annotations

import pytest

from ext_proc.core.expectations import Expectation, Expectations


@pytest.mark.parametrize(("limit", "expected"), [(None, 300.0), (16, 16.0), (0, 0.0), (-1, 0.0), (4096, 300.0)])
def test_answers_are_expected_as_long_as_usual(limit: int | None, expected: float) -> None:
    """The learnt mean counts unless the client's limit is lower; nonsense never makes it negative."""
    assert Expectation().output_within(limit) == expected


def test_length_and_residence_are_learnt() -> None:
    """Finished answers move the expectations towards what was seen; a missing count moves only the residence."""
    expectations = Expectations()
    expectations.known("a").learn(None, 20.0)
    assert (expectations.of("a").output, expectations.of("a").residence) == (300.0, pytest.approx(10.2))
    expectations.known("a").learn(400, 20.0)
    assert expectations.of("a").output == pytest.approx(302.0)


def test_each_model_has_its_own_and_a_new_one_begins_with_the_mean() -> None:
    """A model with short answers is not expected to give long ones because another one does."""
    expectations = Expectations()
    assert expectations.of("new").output == 300.0
    for _ in range(500):
        expectations.known("long").learn(2000, 60.0)
    assert expectations.known("new").output == pytest.approx(2000, rel=0.01)
    for _ in range(500):
        expectations.known("short").learn(10, 1.0)
    assert expectations.of("short").output == pytest.approx(10, rel=0.1)
    assert expectations.of("long").output == pytest.approx(2000, rel=0.01)


def test_models_that_are_not_served_share_one_expectation() -> None:
    """What strangers call their model takes no memory."""
    expectations = Expectations()
    expectations.known(None).learn(400, 10.0)
    assert expectations.of(None) is expectations.of("x") is expectations.unnamed
    assert expectations.of("x").output == pytest.approx(302.0)
    assert expectations.models == {}


def test_the_longest_residence_is_that_of_the_slowest_model() -> None:
    """How long a request may be silent is measured by the model whose answers take longest."""
    expectations = Expectations()
    for _ in range(500):
        expectations.known("quick").learn(10, 1.0)
        expectations.known("slow").learn(900, 90.0)
    assert expectations.longest_residence == pytest.approx(90.0, rel=0.01)


def test_tokens_per_estimated_token_are_learnt() -> None:
    """Text that has more tokens than was estimated is counted higher from then on, and within reason."""
    expectations = Expectations()
    assert expectations.of("a").scale == 1.0
    for _ in range(500):
        expectations.known("a").learn_tokens(1000, 1300)
        expectations.known("odd").learn_tokens(1, 10_000_000)
    assert expectations.of("a").scale == pytest.approx(1.3, rel=0.01)
    assert expectations.of("odd").scale == 5.0


def test_one_absurd_count_does_little() -> None:
    """A single prompt with an unlikely count does not turn the estimate over."""
    expectations = Expectations()
    expectations.known("a").learn_tokens(100, 500)
    assert 1.0 < expectations.of("a").scale < 1.2


def test_models_that_come_and_go_take_bounded_memory() -> None:
    """Thousands of adapters, one after the other, leave a thousand expectations."""
    expectations = Expectations()
    for number in range(3000):
        expectations.known(f"adapter-{number}").learn(10, 1.0)
    assert len(expectations.models) == 1000
    assert "adapter-2999" in expectations.models
