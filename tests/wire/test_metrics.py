"""What engines say of themselves reaches a running kvpicker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.wire.stack import Stack, running_stack

pytestmark = pytest.mark.envoy


async def metrics(stack: Stack) -> list[dict[str, Any]]:
    """Return what is known of each engine by its metrics."""
    async with stack.client.get(f"http://{stack.service.admin_address}/debug/endpoints") as answer:
        return [endpoint["metrics"] for endpoint in (await answer.json())["endpoints"]]


async def test_load_times_and_memory_of_every_engine_are_shown(tmp_path: Path) -> None:
    """While requests run, their engine says so; afterwards the time to their first tokens is known."""
    async with running_stack(tmp_path, engines=2, speed=1.0, kv_tokens=50_000) as stack:

        async def all_read() -> bool:
            return all(each["engine"] == "vllm" and each["kv_tokens"] == 50_000 for each in await metrics(stack))

        async def one_runs() -> bool:
            return sum(each["running"] or 0 for each in await metrics(stack)) == 1

        async def first_token_seen() -> bool:
            return any(each["ttft_ms"] for each in await metrics(stack))

        await until(all_read)
        assert [endpoint.kv_tokens for endpoint in stack.service._core.registry.snapshot.endpoints] == [50_000] * 2
        message = {"role": "user", "content": "Tell me a long story. " * 20}
        body = {"model": "sim/chat-8b", "max_tokens": 400, "ignore_eos": True, "stream": True, "messages": [message]}
        async with stack.client.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            await until(one_runs)
            await until(first_token_seen)
            await answer.read()
        await stack.finished(1)
        async with stack.client.get(f"http://{stack.service.admin_address}/metrics") as answer:
            page = await answer.text()
        assert 'kvpicker_degraded{reason="metrics"} 0.0' in page
        assert 'kvpicker_scrape_attempts_total{result="ok"}' in page
        assert page.count("kvpicker_scrape_age_seconds{") == 2
        assert await stack.violations() == {}
