"""What kvpicker knows of real engines is what they report themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.engines.conversations import PATH, Plan
from benchmarks.engines.vllm_engine import BLOCK_TOKENS
from ext_proc.core.model import IndexMode
from tests.engines.stage import DEADLINE_S, EXACT, Stage, chat, hold_all
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PLAN = Plan(tokens=24, think=0.3)


async def test_cached_tokens_are_predicted_exactly_and_bodies_arrive_unchanged(
    stage: Stage, results: dict[str, Any]
) -> None:
    """Of conversations that do not fit in the caches, nearly every request's cached tokens are known beforehand."""
    await hold_all(stage, PLAN, "truth")
    count = PLAN.sessions * PLAN.turns
    joined = await stage.joined(count)
    made = [(decision.prediction(outcome.served or ""), outcome.usage.cached_tokens) for decision, outcome in joined]
    exact = [
        prediction.tokens == cached
        for prediction, cached in made
        if prediction is not None and prediction.mode is IndexMode.TOKEN
    ]
    wrong = [(prediction, cached) for prediction, cached in made if prediction and prediction.tokens != cached]
    counted = [decision.request.prompt_tokens == outcome.usage.prompt_tokens for decision, outcome in joined]
    results["predicted_exact"] = round(sum(exact) / max(len(exact), 1), 4)
    results["by_tokens"] = round(len(exact) / count, 4)
    assert len(exact) >= 0.9 * count
    assert sum(counted) >= len(exact)
    assert sum(exact) >= EXACT * len(exact), wrong
    assert any(cached for _, cached in made)
    received = [digest for tap in stage.taps for digest in tap.digests(PATH)]
    assert Counter(received) == Counter(stage.sent)
    results["bodies_identical"] = len(received)


async def test_what_is_evicted_is_forgotten(stage: Stage) -> None:
    """After more prompts than fit, a prompt counts as held exactly where and as far as its engine still has it."""
    engine = stage.engines[0]
    size = engine.kv_tokens // BLOCK_TOKENS
    first = chat("alpha beta " * 400, tokens=1)
    held = await stage.ask_engine(0, first)
    await stage.settled()
    expected = await stage.explained(first)
    assert expected[stage.taps[0].address] == held.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert expected[stage.taps[1].address] == 0
    sent, number = 0, 0
    while sent < engine.kv_tokens - held.prompt_tokens // 2:
        number += 1
        sent += (await stage.ask_engine(0, chat(f"{number} gamma delta " * 300))).prompt_tokens
    await stage.settled()
    assert stage.blocks(0) <= size
    left = (await stage.explained(first))[stage.taps[0].address]
    assert left < expected[stage.taps[0].address]
    assert (await stage.ask_engine(0, first)).cached_tokens == left
    for old in range(1, number + 1):
        prompt = chat(f"{old} gamma delta " * 300)
        await stage.settled()
        told = (await stage.explained(prompt))[stage.taps[0].address]
        assert (await stage.ask_engine(0, prompt)).cached_tokens == told


async def test_the_page_of_metrics_is_read(stage: Stage) -> None:
    """Load and memory are read, the size of the cache as prometheus_client reads it from the same engine."""
    await stage.ask(chat("List three rivers. " * 50, tokens=4))

    async def is_read() -> bool:
        told = (await stage.page("/debug/endpoints"))["endpoints"]
        read = [one["metrics"] for one in told]
        idle = all((one["running"], one["waiting"]) == (0, 0) for one in read)
        return idle and all(one["engine"] == "vllm" and one["kv_tokens"] for one in read)

    await stage.joined(1)
    await until(is_read, DEADLINE_S)
    endpoints = (await stage.page("/debug/endpoints"))["endpoints"]
    for engine, tap in zip(stage.engines, stage.taps, strict=True):
        async with stage.session.get(f"{engine.url}/metrics") as answer:
            families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
        configured = families["vllm:cache_config_info"].samples[0].labels
        read = next(one for one in endpoints if one["address"] == tap.address)["metrics"]
        assert read["kv_tokens"] == int(configured["num_gpu_blocks"]) * int(configured["block_size"])
    page = await stage.page("/metrics")
    assert 'kvpicker_degraded{reason="metrics"} 0.0' in page
    assert 'kvpicker_degraded{reason="kv_events"} 0.0' in page
