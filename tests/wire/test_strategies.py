"""Strategies behind a real Envoy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wire.stack import MODEL, Stack, refuse, running_stack

pytestmark = pytest.mark.envoy


async def _served_by(stack: Stack, text: str, **headers: str) -> str:
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    status, told, _ = await stack.post("/v1/chat/completions", body, **headers)
    assert status == 200
    return told["x-sim-engine"]


async def test_a_session_follows_its_cookie(tmp_path: Path) -> None:
    """Requests with one cookie meet on one engine whatever they ask, until it refuses; then they meet on another."""
    async with running_stack(tmp_path, strategy="session-affinity", session_cookie="chat_id") as stack:
        cookie = "login=secret; chat_id=c-17"
        first = await _served_by(stack, "How many legs has a spider?", cookie=cookie)
        assert {await _served_by(stack, f"{turn} unlike the others", cookie=cookie) for turn in range(8)} == {first}
        others = {await _served_by(stack, f"{turn} of others " * 9, cookie=f"chat_id=o-{turn}") for turn in range(8)}
        assert len(others) > 1
        await stack.finished(17)
        await refuse(stack, next(engine for engine in stack.engines if engine.options.name == first))
        moved = await _served_by(stack, "And an ant?", cookie=cookie)
        assert moved != first
        await stack.finished(18)
        later = {await _served_by(stack, f"{turn} after that", cookie=cookie) for turn in range(4)}
        assert len(later) == 1
        assert first not in later
        assert b"secret" not in stack.output.getvalue()
        assert await stack.violations() == {}


async def test_outcomes_of_real_requests_make_reputations(tmp_path: Path) -> None:
    """Token counts and durations from Envoy's log give every engine a latency, and none a bad name."""
    async with running_stack(tmp_path, strategy="reputation") as stack:
        for turn in range(9):
            await _served_by(stack, f"question {turn}")
        await stack.finished(9)
        core = stack.service._core
        latencies = core.picker.knowledge.reputations.latencies(core.registry.snapshot.endpoints)
        assert all(latency is not None and 0 < latency < 10 for latency in latencies)
        async with stack.client.get(f"http://{stack.service.admin_address}/debug/endpoints") as answer:
            shown = (await answer.json())["endpoints"]
        assert all(endpoint["reputation"] > 0.05 for endpoint in shown)
        assert {decision["strategy"] for decision in await stack.decisions()} == {"reputation"}


async def test_prompts_that_begin_alike_meet_without_any_feedback(tmp_path: Path) -> None:
    """prefix-affinity sends each family of prompts to one engine, other families to others."""
    strategy = "prefix-affinity, parameters: {free_requests: 20}"
    async with running_stack(tmp_path, strategy=strategy) as stack:
        families = ["".join(f"{family} rule {line}. " for line in range(200)) for family in "abcdefghijklmnop"]
        first = [await _served_by(stack, family + "first question") for family in families]
        assert [await _served_by(stack, family + "second question") for family in families] == first
        assert len(set(first)) > 1
