"""Two data-parallel ranks of one real engine, each with a cache of its own, behind one address."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.engines import environments
from benchmarks.engines.conversations import PATH, Plan
from benchmarks.engines.vllm_engine import BLOCK_TOKENS, Ports, VllmEngine, neighbouring_ports
from ext_proc.config import parse
from ext_proc.core.model import IndexMode
from ext_proc.doctor.advice import findings
from ext_proc.doctor.command import examine_all, registered
from ext_proc.doctor.examination import Examination
from ext_proc.doctor.finding import Finding, Level
from tests.engines.stage import DEADLINE_S, EXACT, Stage, chat, hold_all, running_stage
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

RANKS = 2
BLOCKS = 500
"""Of each rank: where more is evicted, much of what was known is gone again before its request begins."""

PLAN = Plan(turns=4, tokens=16, think=0.3)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ranked(cache: Path, model: Path) -> AsyncIterator[VllmEngine]:
    """Run one engine with two ranks."""
    log = cache / "logs" / "engine-ranks.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    http, events, *_ = neighbouring_ports(1 + 2 * (RANKS + 1))  # with a rank more at which nobody listens
    ports = Ports(http, events, events + RANKS + 1)
    async with VllmEngine(environments.vllm(cache), model, ports, log, blocks=BLOCKS, ranks=RANKS) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def stage(tmp_path: Path, ranked: VllmEngine) -> AsyncIterator[Stage]:
    """Put kvpicker and Envoy before it; picks name the rank."""
    async with running_stage(tmp_path, [ranked], {"source": "engine", "deadline_ms": 1_000}) as running:
        yield running


async def test_a_request_goes_to_the_rank_that_holds_its_prompt(stage: Stage) -> None:
    """Each rank's events say what it holds, and the rank that a pick names is the one that answers."""
    prompts = [chat(f"{word} run to the sea, and the sea is never full. " * 30) for word in ("Rivers", "Streams")]
    held = [
        (await stage.ask_engine(0, prompt, rank)).prompt_tokens // BLOCK_TOKENS for rank, prompt in enumerate(prompts)
    ]
    await stage.settled()
    publishers = (await stage.page("/debug/endpoints"))["endpoints"][0]["kv_events"]
    assert [(one["connected"], one["believed"], one["complete"]) for one in publishers] == [(True, True, True)] * RANKS
    feeds = stage.resident._reporters[stage.slot(0)].feeds
    assert [list(feed.caches) for feed in feeds] == [[0], [1]]
    assert [one["blocks"] for one in publishers] == [len(feed.caches[rank]) for rank, feed in enumerate(feeds)]
    assert all(one["blocks"] >= blocks for one, blocks in zip(publishers, held, strict=True))
    for rank in (1, 0, 1, 0):
        assert (await stage.ask(prompts[rank])).cached_tokens == held[rank] * BLOCK_TOKENS
        named = [passed.rank for passed in stage.taps[0].passed if passed.path == PATH]
        assert named[-1] == str(rank)
    decided = [(decision.rank, decision.hit_tokens) for decision, _ in await stage.joined(4)]
    assert decided == [(rank, held[rank] * BLOCK_TOKENS) for rank in (1, 0, 1, 0)]
    for rank, prompt in enumerate(prompts):
        assert (await stage.ask_engine(0, prompt, 1 - rank)).cached_tokens < BLOCK_TOKENS * held[rank]


async def test_cached_tokens_of_named_ranks_are_predicted_exactly(stage: Stage, results: dict[str, Any]) -> None:
    """Both ranks are used, every request names one, and what that one holds is known to the token."""
    await hold_all(stage, PLAN, "ranks")
    count = PLAN.sessions * PLAN.turns
    joined = await stage.joined(count)
    named = Counter(decision.rank for decision, _ in joined)
    assert sum(named.values()) - named[None] >= 0.9 * count
    assert min(named[rank] for rank in range(RANKS)) >= 0.2 * count
    seen = Counter(passed.rank for passed in stage.taps[0].passed if passed.path == PATH)
    assert seen == {None if rank is None else str(rank): times for rank, times in named.items()}
    made = [
        (decision.prediction(outcome.served or ""), outcome.usage.cached_tokens)
        for decision, outcome in joined
        if decision.rank is not None
    ]
    exact = [prediction and prediction.tokens == cached for prediction, cached in made]
    results["ranks_predicted_exact"] = round(sum(map(bool, exact)) / len(exact), 4)
    results["ranks_cached_ratio"] = round(
        sum(cached or 0 for _, cached in made) / sum(outcome.usage.prompt_tokens or 0 for _, outcome in joined), 3
    )
    assert all(prediction is not None and prediction.mode is IndexMode.TOKEN for prediction, _ in made)
    assert sum(map(bool, exact)) >= EXACT * len(exact), made
    assert any(cached for _, cached in made)


async def test_the_metrics_of_all_ranks_are_added_up(stage: Stage) -> None:
    """Of the load, the counters and the memory, each as prometheus_client reads it from the same page."""
    engine, slot = stage.engines[0], stage.slot(0)
    for rank in range(RANKS):
        await stage.ask_engine(0, chat(f"Name rank {rank}. " * 20), rank)
    async with stage.session.get(f"{engine.url}/metrics") as answer:
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    ranks = {sample.labels["engine"]: sample.value for sample in families["vllm:prefix_cache_queries"].samples
             if sample.name.endswith("_total")}  # fmt: skip
    assert sorted(ranks) == ["0", "1"]
    assert all(ranks.values())

    def is_read() -> bool:
        told = stage.service._core.signals.of(slot, time.monotonic())
        return told is not None and told.queried_tokens == sum(ranks.values())

    await until(is_read, DEADLINE_S)
    told = stage.service._core.signals.of(slot, time.monotonic())
    assert told is not None
    assert (told.kv_tokens, told.block_tokens) == (RANKS * BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS)
    assert (told.running, told.waiting, told.kv_usage) == (0, 0, 0.0)


async def test_the_doctor_knows_the_ranks(stage: Stage) -> None:
    """It says how many publish and how much they hold together; and that some are not heard, or do not exist."""
    engine = stage.engines[0]

    async def examine(ranks: int) -> tuple[Examination, list[Finding]]:
        events = {"port": 1, "ranks": ranks, "pin_rank": ranks > 1}
        config = parse(
            json.dumps({"pools": {"p": {"endpoints": [engine.settings], "kv_events": events, "tokens": {}}}})
        )
        (one,) = await examine_all(config, registered(config), probe=True, timeout_s=30.0)
        problems = [finding for finding in findings([one], config.pools) if finding.level is Level.PROBLEM]
        return one, problems

    made, missing, absent = await asyncio.gather(examine(RANKS), examine(RANKS - 1), examine(RANKS + 1))
    one, problems = made
    assert problems == []
    assert one.kv_events is not None
    assert (one.kv_events.ranks, one.kv_events.replay) == (RANKS, True)
    first, second = (f"tcp://*:{engine.ports.events + rank}" for rank in range(RANKS))
    assert one.kv_events.where == f"{first}, {second}"
    assert (one.kv_tokens, one.block_tokens, one.reports_cached) == (engine.kv_tokens, BLOCK_TOKENS, True)
    assert ["kv_events.ranks: 2" in finding.do for finding in missing[1]] == [True]
    assert any("kv_events.ranks: 2" in finding.do for finding in absent[1])
    assert len(absent[0].deaf) == 2
