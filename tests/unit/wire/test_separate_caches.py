"""What separates KV caches, from the bytes of a request to the decision."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_proc.core.model import Decision
from tests.unit.wire.picking import Picking, body_message, headers_message

CONFIG = """
pools:
  main: {endpoints: ["10.0.0.11:8000"], models: [a, ab, X, "a\\0x"]}
"""
PREFIX = [{"role": "user", "content": "List three rivers. " * 400}]


def decided(picking: Picking, **fields: Any) -> Decision:
    """Have a request decided, and count it as in flight."""
    session = picking.session()
    session.receive(headers_message())
    session.receive(body_message(json.dumps({"messages": PREFIX, **fields}).encode()))
    decision = picking.notes.all("decided")[-1]
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize(
    ("learnt", "asked"),
    [
        ({"model": "a", "cache_salt": "bc"}, {"model": "ab", "cache_salt": "c"}),
        ({"model": "X"}, {"model": "a", "cache_salt": "X"}),
        ({"model": "a", "cache_salt": "X"}, {"model": "X"}),
        ({"model": "a", "cache_salt": "x\0y"}, {"model": "a\0x", "cache_salt": "y"}),
        ({"model": "a", "cache_salt": "x\0y"}, {"model": "a", "cache_salt": "x"}),
        ({"model": "a", "cache_salt": "x\0y"}, {"model": "a", "cache_salt": "y"}),
        ({"model": "a"}, {"model": "a", "cache_salt": "a"}),
    ],
    ids=["moved border", "adapter or salt", "salt or adapter", "separator", "first part", "last part", "salt or none"],
)
def test_no_cache_is_credited_with_the_prefix_of_another(learnt: dict[str, str], asked: dict[str, str]) -> None:
    """Names and salts that read alike when joined are apart; the same ones meet (H08)."""
    picking = Picking(CONFIG)
    decided(picking, **learnt)
    assert decided(picking, **asked).hit_tokens == 0
    assert decided(picking, **learnt).hit_tokens > 1_000
