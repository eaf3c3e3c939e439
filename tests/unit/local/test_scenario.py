"""The texts of the demonstration."""

from __future__ import annotations

from typing import Any

from ext_proc.local.scenario import SMALL, Scenario, Sizes


def user_texts(bodies: list[dict[str, Any]]) -> list[str]:
    """Return the last message of each body."""
    return [body["messages"][-1]["content"] for body in bodies]


def test_the_same_seed_gives_the_same_texts() -> None:
    """A demonstration can be repeated."""
    assert Scenario("m", Sizes(), 1).turns() == Scenario("m", Sizes(), 1).turns()


def test_different_seeds_share_no_prefix() -> None:
    """A run finds nothing in caches that an earlier run has filled."""
    first, second = (user_texts(Scenario("m", Sizes(), seed).singles())[0] for seed in (1, 2))
    assert first[:12] != second[:12]


def test_unrelated_prompts_share_no_prefix() -> None:
    """Their first words differ already."""
    starts = {text[:12] for text in user_texts(Scenario("m", Sizes(), 1).singles())}
    assert len(starts) == Sizes().singles


def test_questions_share_their_system_prompt_alone() -> None:
    """One long common beginning, many questions."""
    bodies = Scenario("m", Sizes(), 1).questions()
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    assert len(set(user_texts(bodies))) == Sizes().questions


def test_requests_name_the_model_and_bound_their_answers() -> None:
    """No engine writes a novel."""
    body = Scenario("a/model", Sizes(), 1).singles()[0]
    assert (body["model"], body["max_tokens"]) == ("a/model", 24)


def test_the_small_texts_fit_into_a_small_model() -> None:
    """The longest conversation stays below 2,000 tokens of four bytes."""
    texts = Scenario("m", SMALL, 1).turns()
    assert sum(map(len, texts)) // 4 + SMALL.turns * 24 < 2_000
