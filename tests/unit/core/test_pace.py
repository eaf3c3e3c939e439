"""Seconds per generated token, told from whole answers."""

from __future__ import annotations

import random

import pytest

from ext_proc.core.pace import Pace


def test_the_slope_is_found_among_noise() -> None:
    """Whatever the first token takes, each further one takes the same."""
    pace, generator = Pace(), random.Random(1)
    for _ in range(300):
        tokens = generator.randint(10, 500)
        pace.note(tokens, generator.uniform(0.1, 0.9) + 0.02 * tokens)
    assert pace.seconds_per_token == pytest.approx(0.02, rel=0.1)


def test_equal_lengths_tell_nothing() -> None:
    """Without answers of different lengths there is no slope."""
    pace = Pace()
    for _ in range(100):
        pace.note(64, 2.0)
    assert pace.seconds_per_token is None


def test_few_answers_tell_nothing() -> None:
    """A line through two points proves little."""
    pace = Pace()
    for tokens in (10, 500):
        pace.note(tokens, 0.1 * tokens)
    assert pace.seconds_per_token is None


def test_a_slope_is_never_negative() -> None:
    """Where longer answers happen to be quicker, a token is taken to be free."""
    pace = Pace()
    for number in range(200):
        pace.note(10 + number % 50, 10.0 - 0.1 * (number % 50))
    assert pace.seconds_per_token == 0.0
