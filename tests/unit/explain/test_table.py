"""The table of an explanation."""

from __future__ import annotations

import io
from typing import Any

from ext_proc.explain.table import show

PICKED: dict[str, Any] = {
    "verdict": "picked",
    "operation": "chat",
    "model": "[bold]m[/bold]",
    "prompt_tokens": 1234,
    "prompt_blocks": 0,
    "unhashed": "no_prompt",
    "truncated": True,
    "strategy": "chain",
    "reason": "wait",
    "endpoint": "10.0.0.12:8000",
    "fallbacks": ["10.0.0.11:8000"],
    "filters": ["model: 2 of 2 match"],
    "removed": [],
    "notes": [],
}
TERMS = {"queue_ms": 1.0, "prefill_ms": 2.0, "interference_ms": 3.0, "backlog_ms": 4.0, "memory_ms": 5.0}
TERMS["copying_ms"] = -0.5


def shown(candidates: list[dict[str, Any]]) -> str:
    """Return what is printed."""
    output = io.StringIO()
    show({**PICKED, "candidates": candidates}, output)
    return output.getvalue()


def row(place: int, **fields: Any) -> dict[str, Any]:
    """Make a candidate."""
    return {"endpoint": f"10.0.0.{place}:8000", "hit_tokens": 0, "in_flight": 1, **fields}


def cells(output: str, address: str) -> list[str]:
    """Return the words of a candidate's line in the table."""
    lines = [line.split() for line in output.splitlines()]
    return next(words for words in lines if address in words[:2] and words[0] != "verdict")


def test_the_chosen_one_and_its_fallbacks_are_numbered() -> None:
    """The order in which Envoy tries them stands in front."""
    output = shown([row(12, **TERMS, cost_ms=15.0), row(11, **TERMS, cost_ms=1500.25)])
    assert cells(output, "10.0.0.12:8000")[0] == "1."
    assert cells(output, "10.0.0.11:8000")[-7:] == ["1.0", "2.0", "3.0", "4.0", "5.0", "-0.5", "1,500.2"]


def test_who_was_filtered_out_has_no_cost() -> None:
    """A candidate that the strategy itself removed is named as such beside those that have terms."""
    output = shown([row(12, **TERMS, cost_ms=15.0), row(11, filtered=True)])
    assert cells(output, "10.0.0.11:8000")[-2:] == ["filtered", "out"]


def test_other_strategies_have_one_column() -> None:
    """A cost that is no time is shown alone; one without an end is in words."""
    output = shown([row(12, cost=3.0), row(11, cost=None)])
    assert "queue" not in output
    assert (cells(output, "10.0.0.12:8000")[-1], cells(output, "10.0.0.11:8000")[-1]) == ("3.0", "endless")


def test_scores_have_a_column_each() -> None:
    """What a weighted sum is made of stands before it; who was filtered out has none."""
    output = shown([row(12, cost=0.125, scores={"prefix": 1.0, "queue": 0.5}), row(11, filtered=True)])
    assert cells(output, "10.0.0.12:8000")[-3:] == ["1.00", "0.50", "0.125"]
    assert cells(output, "10.0.0.11:8000")[-2:] == ["filtered", "out"]
    assert "prefix" in output


def test_who_ranked_is_told() -> None:
    """A strategy that left the choice to another one, and one that failed, are named."""
    output = io.StringIO()
    show({**PICKED, "inside": "least-wait", "replaced": "mine", "candidates": []}, output)
    assert "chain, which leaves the choice to least-wait, in place of mine, which failed" in output.getvalue()


def test_a_body_that_is_no_json_is_told_in_the_verdict() -> None:
    """Nobody shall take the choice for one by the prompt."""
    output = io.StringIO()
    show({**PICKED, "unhashed": "not_json", "candidates": []}, output)
    assert "; the body is not valid JSON" in output.getvalue().splitlines()[0]


def test_names_of_strangers_are_no_markup() -> None:
    """What a client sent is printed as it is."""
    output = shown([row(12, cost=3.0)])
    assert "[bold]m[/bold]" in output
    assert "prefixes are not looked at (no_prompt), only its beginning was read" in output
