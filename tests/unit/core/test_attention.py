"""The attention length, from service times."""

from __future__ import annotations

import random

import pytest

from ext_proc.core.attention import START, AttentionLearner


def _teach(learner: AttentionLearner, length: float, count: int = 3000, noise: float = 0.0) -> None:
    generator = random.Random(3)
    for _ in range(count):
        prompt = generator.choice([500, 2_000, 8_000, 30_000, 90_000])
        uncached = max(prompt * generator.random(), 16)
        work = uncached * (1 + (prompt - uncached / 2) / length)
        learner.note(prompt, uncached, work * generator.uniform(1 - noise, 1 + noise) / 10_000)


@pytest.mark.parametrize("length", [12_000.0, 24_000.0, 60_000.0])
def test_the_length_is_found(length: float) -> None:
    """Service times that follow the formula give its A back, noise or not."""
    learner = AttentionLearner()
    _teach(learner, length, noise=0.2)
    assert learner.length == pytest.approx(length, rel=0.15)


def test_few_observations_change_nothing() -> None:
    """Before two hundred prefills the start value holds."""
    learner = AttentionLearner()
    _teach(learner, 100_000.0, count=199)
    assert (learner.length, learner.learnt) == (START, False)


def test_equal_prompts_tell_nothing() -> None:
    """One length of prompt cannot tell the linear part from attention."""
    learner = AttentionLearner()
    for _ in range(1000):
        learner.note(4000, 4000, 0.5)
    assert learner.length == START


def test_the_length_stays_within_reason() -> None:
    """Times without any trace of attention, or with nothing else, stop at the bounds."""
    flat, steep = AttentionLearner(), AttentionLearner()
    _teach(flat, 1e12)
    _teach(steep, 100.0)
    assert flat.length <= 300_000
    assert steep.length >= 6_000


def test_short_prefills_say_nothing() -> None:
    """Where little is computed a step takes what it takes anyhow, and that is not held for attention."""
    learner, generator = AttentionLearner(), random.Random(5)
    for _ in range(3000):
        learner.note(generator.uniform(2_000, 9_000), generator.uniform(16, 999), 0.03)
    assert (learner.length, learner.learnt) == (START, False)
