"""Data-parallel ranks behind a real Envoy: the engine is told which of them is to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ext_proc.core.names import ENGINE_ORDERS, RANK
from ext_proc.sim.templates import render_chat
from ext_proc.sim.tokens import to_ids
from tests.unit.sources.publishing import Publisher, neighbours
from tests.waiting import until
from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy

SIZE = 16
HELD = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "List three rivers. " * 60}]}


async def _ranks_seen(stack: Stack, body: dict[str, Any], **headers: str) -> list[str | None]:
    """Send a request, and return what the engine saw of it."""
    (engine,) = stack.engines
    engine.log.clear()
    status, _, _ = await stack.post("/v1/chat/completions", body, **headers)
    assert status == 200
    return [one.header(RANK) for one in engine.log._entries if one.path == "/v1/chat/completions"]


async def _hold(publisher: Publisher, body: dict[str, Any]) -> None:
    """Have a rank report that it holds a prompt."""
    ids = to_ids(render_chat(body))
    blocks = len(ids) // SIZE
    await publisher.publish({
        "type": "BlockStored", "block_hashes": list(range(blocks)), "parent_block_hash": None,
        "token_ids": ids[: blocks * SIZE], "block_size": SIZE, "medium": "GPU",
    })  # fmt: skip


async def test_a_pick_names_the_rank_that_holds_the_prompt(tmp_path: Path) -> None:
    """A client's own header does not reach the engine, whether a rank is named or not, nor do other orders of its."""
    first, second = neighbours()
    async with first, second:
        ports = f"port: {first.port}, replay_port: {first.replay_port}, ranks: 2, pin_rank: true"
        pool = f"    kv_events: {{{ports}}}\n    tokens: {{deadline_ms: 1000}}"
        async with running_stack(tmp_path, engines=1, pool=pool) as stack:
            core = stack.service._core
            (endpoint,) = core.registry.snapshot.endpoints
            await until(lambda: endpoint.slot in core.resident)
            await _hold(second, HELD)
            await until(lambda: core.resident.blocks(endpoint.slot) > 0)
            assert await _ranks_seen(stack, HELD, x_data_parallel_rank="0") == ["1"]
            other = {**HELD, "messages": [{"role": "user", "content": "Name a mountain. " * 60}]}
            assert await _ranks_seen(stack, other) == ["0"]
            await stack.finished(2)
            named = [decision["rank"] for decision in await stack.decisions()]
            assert named == [0, 1]
            embedding = {"model": MODEL, "input": "rivers"}
            orders = {name.replace("-", "_"): "1" for name in ENGINE_ORDERS}
            status, _, _ = await stack.post("/v1/embeddings", embedding, x_data_parallel_rank="1", **orders)
            assert status == 200
            seen = stack.engines[0].log._entries[-1]
            assert [seen.header(name) for name in (RANK, *ENGINE_ORDERS)] == [None] * (1 + len(ENGINE_ORDERS))
            assert await stack.violations() == {}
