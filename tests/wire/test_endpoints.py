"""Endpoints come and go while requests run, and models never cross."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.waiting import until
from tests.wire.stack import FAST, MODEL, Stack, refuse, running_stack

pytestmark = pytest.mark.envoy


async def test_added_endpoint_takes_traffic_within_a_second(stack: Stack) -> None:
    """An engine that is added to the watched file serves soon, without a restart."""
    async with SimEngine(EngineOptions(name="late", speed=FAST, models=(MODEL,))) as late:
        stack.list_engines([*(engine.address for engine in stack.engines), late.address])
        added = time.monotonic()
        await until(lambda: late.address in stack.service._core.registry.snapshot.by_address)
        while (await stack.chat(f"unique {time.monotonic()} " * 20))[1]["x-sim-engine"] != "late":
            assert time.monotonic() - added < 5
        assert time.monotonic() - added < 1.5


async def test_removed_endpoint_finishes_its_streams_and_gets_no_more(tmp_path: Path) -> None:
    """After its removal an engine takes no request, and what it was answering goes on to its end."""
    async with running_stack(tmp_path, engines=2, speed=1.0) as stack:
        message = {"role": "user", "content": "Tell me a long story. " * 20}
        body = {"model": MODEL, "max_tokens": 150, "ignore_eos": True, "stream": True, "messages": [message]}
        async with stack.client.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            leaving = answer.headers["x-sim-engine"]
            stack.list_engines([engine.address for engine in stack.engines if engine.options.name != leaving])
            await until(lambda: len(stack.service._core.registry.snapshot.endpoints) == 1)
            servers = {(await stack.chat(f"unique {number}"))[1]["x-sim-engine"] for number in range(10)}
            assert leaving not in servers
            assert (await answer.read()).rstrip().endswith(b"data: [DONE]")
        assert {line["ending"] for line in await stack.finished(11)} == {"ok"}


async def test_broken_endpoints_file_changes_nothing(stack: Stack) -> None:
    """A list that cannot be read keeps the last good one and is reported."""
    stack.endpoints_file.write_text("endpoints: [nonsense")
    await until(lambda: bool(stack.logged("endpoints_rejected")))
    assert (await stack.chat("hello"))[0] == 200


TWO_MODELS = """
  other:
    endpoints: ["{address}"]
default_pool: main
"""


@asynccontextmanager
async def two_pools(folder: Path, engines: int) -> AsyncIterator[tuple[Stack, SimEngine]]:
    """Run the usual stack with a second pool, whose one engine serves another model."""
    async with AsyncExitStack() as exits:
        options = EngineOptions(name="other", models=("sim/embed-1",), speed=FAST)
        other = await exits.enter_async_context(SimEngine(options))
        pool = TWO_MODELS.format(address=other.address)
        yield await exits.enter_async_context(running_stack(folder, engines=engines, pool=pool)), other


async def test_request_goes_only_to_engines_of_its_model(tmp_path: Path) -> None:
    """Two pools behind one Envoy: no request of one model ever reaches the other's engine."""
    async with two_pools(tmp_path, engines=2) as (stack, _):
        await until(lambda: stack.service._core.registry.snapshot.models == {MODEL, "sim/embed-1"})
        chats = await asyncio.gather(*(stack.chat(f"unique {number}") for number in range(20)))
        assert {headers["x-sim-engine"] for _, headers, _ in chats} == {"engine-0", "engine-1"}
        for number in range(5):
            body = {"model": "sim/embed-1", "input": f"text {number}"}
            _, headers, _ = await stack.post("/v1/embeddings", body)
            assert headers["x-sim-engine"] == "other"


async def test_fallback_stays_in_the_default_pool(tmp_path: Path) -> None:
    """When Envoy must do without kvpicker, traffic goes to the default pool only."""
    async with two_pools(tmp_path, engines=2) as (stack, other):
        await until(lambda: other.address.rpartition(":")[2] in stack.eds_file.read_text())
        await stack.service._grpc.stop(0)
        answers = [await stack.chat(f"unique {number}") for number in range(20)]
        assert {status for status, _, _ in answers} == {200}
        assert "other" not in {headers["x-sim-engine"] for _, headers, _ in answers}


async def test_retries_never_reach_another_model(tmp_path: Path) -> None:
    """When the only engine of a model refuses, the client gets an error, not another model's answer."""
    async with two_pools(tmp_path, engines=1) as (stack, other):
        await until(lambda: stack.service._core.registry.snapshot.models == {MODEL, "sim/embed-1"})
        await refuse(stack, other)
        status, headers, _ = await stack.post("/v1/embeddings", {"model": "sim/embed-1", "input": "x"})
        assert status == 503
        assert "x-sim-engine" not in headers


async def test_many_streams_at_once(tmp_path: Path) -> None:
    """Many concurrent streams meet no circuit breaker and no stream limit (F16)."""
    async with running_stack(tmp_path, engines=3, speed=5.0) as stack:
        answers = await asyncio.gather(*(stack.chat(f"unique {number}", stream=True) for number in range(120)))
        assert {status for status, _, _ in answers} == {200}
        assert await stack.violations() == {}
        await stack.finished(120)
        assert len(stack.service._core.ledger) == 0
