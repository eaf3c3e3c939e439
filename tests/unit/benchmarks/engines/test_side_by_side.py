"""What runs are summed up to, and in which order they are."""

from __future__ import annotations

import pytest

from benchmarks.engines.conversations import Answer
from benchmarks.engines.side_by_side import Run, in_turn, standings, table


def test_ratios_and_times_are_over_all_requests() -> None:
    """Cached tokens count over all prompts, times over what was answered, and a failure is neither."""
    first = [Answer(1.0, 100, 50), Answer(3.0, 300, 0)]
    second = [Answer(2.0, 100, 100), Answer(9.0, problem="503")]
    told = standings([Run("a", 0, first, [1, 1], {}), Run("b", 0, first, [], {}), Run("a", 1, second, [2, 0], {})])
    assert list(told) == ["a", "b"]
    assert told["a"].cached_ratio == pytest.approx(150 / 500)
    assert told["a"].ratios == [0.125, 1.0]
    assert told["a"].mean_ms == 2000.0
    assert told["a"].means_ms == [2000.0, 2000.0]
    assert told["a"].failed == 1
    assert "| a | 0.300 | 0.125, 1.000 |" in table([Run("a", 0, first, [], {}), Run("a", 1, second, [], {})])


def test_nobody_is_always_first() -> None:
    """Over the repetitions the order turns, and everybody has a run in each."""
    orders = [in_turn(["a", "b", "c", "d", "e"], repetition) for repetition in range(5)]
    assert sorted(order[0] for order in orders) == ["a", "b", "c", "d", "e"]
    assert all(sorted(order) == ["a", "b", "c", "d", "e"] for order in orders)
    assert orders[0][0] == "a"
    assert orders[1].index("a") not in {0, 4}
