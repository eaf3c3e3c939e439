"""Engines fall ill and recover under load: how soon they are avoided and how soon they are back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.waiting import until
from tests.wire.stack import FAST, MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy

HEALTH = "{ejection_s: 0.5, slow_start_s: 0.5, probes: {interval_s: 1.0, unwell_interval_s: 0.3, timeout_s: 0.5}}"


class Traffic:
    """A steady stream of requests: when each was sent, its status and the engine that answered."""

    def __init__(self, stack: Stack) -> None:
        self.seen: list[tuple[float, int, str]] = []
        self._stack = stack
        self._number = 0

    async def run(self) -> None:
        """Send until cancelled, eight at a time."""
        await asyncio.gather(*(self._client() for _ in range(8)))

    async def _client(self) -> None:
        while True:
            self._number += 1
            sent = time.monotonic()
            status, headers, _ = await self._stack.chat(f"unique {self._number}", max_tokens=1)
            self.seen.append((sent, status, headers.get("x-sim-engine", "")))
            await asyncio.sleep(0.02)

    def failures(self, since: float) -> list[float]:
        """Return when the requests were sent that failed since."""
        return [sent for sent, status, _ in self.seen if sent >= since and status != 200]

    def answered(self, engine: SimEngine, since: float) -> int:
        """Count the good answers of an engine to requests that were sent since."""
        named = f"engine-{engine.options.name.removeprefix('engine-')}"
        return sum(status == 200 and name == named for sent, status, name in self.seen if sent >= since)


@asynccontextmanager
async def loaded(folder: Path, **options: Any) -> AsyncIterator[tuple[Stack, Traffic]]:
    """Run four engines under a steady load."""
    async with running_stack(folder, engines=4, **({"health": HEALTH} | options)) as stack:
        traffic = Traffic(stack)
        task = asyncio.create_task(traffic.run())
        try:
            await until(lambda: all(traffic.answered(engine, 0.0) for engine in stack.engines))
            yield stack, traffic
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await stack.violations() == {}


async def fault(stack: Stack, engine: SimEngine, **fields: Any) -> None:
    """Set up a fault of an engine."""
    async with stack.client.post(f"{engine.url}/sim/faults", json=fields) as answer:
        assert answer.status == 200


async def mend(stack: Stack, engine: SimEngine) -> None:
    """Take all faults back."""
    async with stack.client.delete(f"{engine.url}/sim/faults") as answer:
        assert answer.status == 200


def changes(stack: Stack, engine: SimEngine) -> list[str]:
    """Return the states that an engine has entered."""
    return [line["state"] for line in stack.logged("health_changed") if line["endpoint"] == engine.address]


async def test_an_engine_that_refuses_is_avoided_and_comes_back(tmp_path: Path) -> None:
    """Only what ran there is lost; probes see the end of it, so that it is back long before its ejection is over."""
    health = HEALTH.replace("ejection_s: 0.5", "ejection_s: 60").replace("{", "{max_ejection_s: 60, ", 1)
    async with loaded(tmp_path, health=health) as (stack, traffic):
        ill = stack.engines[0]
        began = time.monotonic()
        await fault(stack, ill, kind="refuse", **{"for": 3})
        await until(lambda: "ejected" in changes(stack, ill))
        assert time.monotonic() - began < 2.0
        await until(lambda: changes(stack, ill)[-1] == "ready", 3.0 + 15.0)
        back = time.monotonic()
        await until(lambda: traffic.answered(ill, back) > 0)
        cut = [sent - began for sent in traffic.failures(began)]
        assert len(cut) <= 8, "no more than ran there when it went"
        assert max(cut, default=0.0) < 1.0


async def _ill_and_well_again(stack: Stack, traffic: Traffic, **fields: Any) -> None:
    ill, began = stack.engines[0], time.monotonic()
    await fault(stack, ill, **fields)
    await until(lambda: "ejected" in changes(stack, ill))
    first = min(traffic.failures(began), default=began)
    assert time.monotonic() - first < 2.0
    await mend(stack, ill)
    mended = time.monotonic()
    await until(lambda: changes(stack, ill)[-1] == "ready", 15.0)
    await until(lambda: traffic.answered(ill, mended) > 20, 15.0)
    count = len(traffic.seen)
    await until(lambda: len(traffic.seen) > count + 20)
    assert [sent for sent in traffic.failures(mended) if sent > mended + 0.5] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "reset_before_headers"},
        {"kind": "error_500"},
        {"kind": "error_500", "probability": 0.3},
    ],
    ids=["resets", "500s", "500s at 30 %"],
)
async def test_an_engine_that_fails_is_avoided_and_comes_back(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Its failures do not make it look idle, though probes find it well; a trial request ends its ejection."""
    async with loaded(tmp_path) as (stack, traffic):
        await _ill_and_well_again(stack, traffic, **fields)


async def test_a_busy_engine_is_not_ill(tmp_path: Path) -> None:
    """429 and 503 of engines are load, however many there are."""
    async with loaded(tmp_path) as (stack, traffic):
        began = time.monotonic()
        for engine, kind in zip(stack.engines, ("busy_503", "status=429", "busy_503", "status=429"), strict=True):
            await fault(stack, engine, kind=kind)
        await until(lambda: len(traffic.failures(began)) > 40)
        assert stack.logged("health_changed") == []


async def test_an_engine_that_hangs_is_found_out_by_probes(tmp_path: Path) -> None:
    """Its requests do not end, so that only probes can tell; nobody waits for the requests' timeouts."""
    async with running_stack(tmp_path, engines=3, health=HEALTH) as stack:
        ill = stack.engines[0]
        for path in ("/health", "/metrics", "/v1"):
            await fault(stack, ill, kind="stall", seconds=60, path=path)
        await until(lambda: changes(stack, ill)[-1:] == ["ejected"], 8.0)
        for number in range(6):
            _, headers, _ = await stack.chat(f"unique {number}")
            assert headers["x-sim-engine"] != ill.options.name
        await mend(stack, ill)
        await until(lambda: changes(stack, ill)[-1] == "ready", 8.0)


async def test_a_newcomer_that_loads_gets_nothing_yet(tmp_path: Path) -> None:
    """An engine joins while it loads: it warms up, then gets its share slowly."""
    newcomer = SimEngine(EngineOptions(name="engine-9", speed=FAST, models=(MODEL,), record=1000))
    async with loaded(tmp_path) as (stack, traffic), newcomer:
        await fault(stack, newcomer, kind="status=503", path="/health")
        stack.list_engines([*(engine.address for engine in stack.engines), newcomer.address])
        health = stack.service._core.health
        known = stack.service._core.registry
        await until(lambda: newcomer.address in known.snapshot.by_address)
        slot = known.snapshot.by_address[newcomer.address].slot
        count = len(traffic.seen)
        await until(lambda: len(traffic.seen) > count + 100)
        assert health.state(slot) == "warming"
        assert traffic.answered(newcomer, 0.0) == 0
        await mend(stack, newcomer)
        await until(lambda: health.state(slot) == "ready")
        await until(lambda: traffic.answered(newcomer, 0.0) > 5)


async def test_engines_without_a_page_of_health_serve(tmp_path: Path) -> None:
    """404 is an answer: nobody is ejected, and a newcomer joins at once."""
    newcomer = SimEngine(EngineOptions(name="engine-9", speed=FAST, models=(MODEL,), record=1000))
    health = HEALTH.replace("probes: {", "probes: {path: /no/such/page, ")
    async with loaded(tmp_path, health=health) as (stack, traffic), newcomer:
        stack.list_engines([*(engine.address for engine in stack.engines), newcomer.address])
        await until(lambda: traffic.answered(newcomer, 0.0) > 5)
        assert {line["state"] for line in stack.logged("health_changed")} <= {"ready"}
        page = f"http://{stack.service.admin_address}/metrics"
        async with stack.client.get(page) as answer:
            text = await answer.text()
        assert 'kvpicker_probes_total{result="unsupported"}' in text
        assert 'kvpicker_degraded{reason="probes"} 0.0' in text
