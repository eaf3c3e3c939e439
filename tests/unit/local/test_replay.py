"""What round robin would have got from the engines' caches."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.local.replay import replay, round_robin
from ext_proc.sim.engine import EngineOptions

OPTIONS = EngineOptions()


def request(text: str, answer: str = "") -> tuple[dict[str, Any], str]:
    """Make a chat request with its answer."""
    return {"model": "m", "messages": [{"role": "user", "content": text}]}, answer


def test_nothing_is_cached_at_first() -> None:
    """The caches start empty."""
    assert round_robin([request("a" * 4000), request("b" * 4000)], OPTIONS, 1) == 0


def test_a_repeated_prompt_is_found_on_the_same_engine() -> None:
    """Of two equal prompts the second is cached but for its last block."""
    assert replay([request("a" * 4000)] * 2, OPTIONS, [0, 0]) == pytest.approx(0.5, abs=0.02)


def test_a_repeated_prompt_is_not_found_on_another_engine() -> None:
    """Engines share nothing."""
    assert replay([request("a" * 4000)] * 2, OPTIONS, [0, 1]) == 0


def test_round_robin_goes_round() -> None:
    """The fourth of four equal prompts meets the first one's engine."""
    assert round_robin([request("a" * 4000)] * 4, OPTIONS, 3) == pytest.approx(0.25, abs=0.02)


def test_answers_are_cached_too() -> None:
    """The next turn of a conversation finds what the engine wrote."""
    body, answer = request("a" * 4000, "b" * 4000)
    messages = [*body["messages"], {"role": "assistant", "content": answer}, {"role": "user", "content": "c"}]
    without = replay([request("a" * 4000), ({**body, "messages": messages}, "")], OPTIONS, [0, 0])
    assert replay([(body, answer), ({**body, "messages": messages}, "")], OPTIONS, [0, 0]) > without


def test_no_requests_are_no_error() -> None:
    """There is nothing to divide by."""
    assert round_robin([], OPTIONS, 3) == 0
