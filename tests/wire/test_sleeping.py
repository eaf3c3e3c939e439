"""E17: engines that sleep (vLLM's sleep mode), behind a real Envoy."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from ext_proc.cli import main
from ext_proc.sim.engine import SimEngine
from tests.waiting import until
from tests.wire.stack import Stack, running_stack
from tests.wire.test_health import Traffic, changes, fault, mend

pytestmark = pytest.mark.envoy

HEALTH = "{slow_start_s: 0.5, probes: {interval_s: 0.5, unwell_interval_s: 0.3, timeout_s: 5.0}}"
OFTEN = "scrape: {interval_s: 0.1, idle_interval_s: 0.1}\nenvoy: {endpoints_file: %s, max_message_timeout_s: 21}"


def patient(folder: Path, pool: str = "") -> dict[str, Any]:
    """Make the options of a stack whose metrics are read often, and whose Envoy lets requests wait."""
    settings = OFTEN % (folder / "eds.json")
    return {
        "health": HEALTH,
        "pool": f"{pool}\n{settings}",
        "own_envoy": True,
        "max_message_timeout": 21.0,
    }


async def order(stack: Stack, engine: SimEngine, path: str) -> None:
    """Send an engine to sleep, or wake it."""
    async with stack.client.post(engine.url + path) as answer:
        assert answer.status == 200


async def stages(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return what kvpicker knows of each endpoint."""
    async with stack.client.get(f"http://{stack.service.admin_address}/debug/endpoints") as answer:
        return {row["address"]: row for row in (await answer.json())["endpoints"]}


async def asleep(stack: Stack, *engines: SimEngine) -> None:
    """Wait until kvpicker knows that these sleep, and no others."""
    wanted = {engine.address for engine in engines}

    async def known() -> bool:
        return {address for address, row in (await stages(stack)).items() if row["lifecycle"] == "asleep"} == wanted

    await until(known)


def eds_health(stack: Stack) -> dict[int, str]:
    """Return what Envoy's fallback policy is told of each port."""
    listed = json.loads(stack.eds_file.read_text())["resources"][0]["endpoints"][0]["lb_endpoints"]
    return {host["endpoint"]["address"]["socket_address"]["port_value"]: host["health_status"] for host in listed}


def port(engine: SimEngine) -> int:
    """Return the port of an engine."""
    return int(engine.address.rpartition(":")[2])


async def test_e17_requests_go_to_the_engine_that_is_awake(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its page says asleep: nothing goes there, its prefixes are dropped, Envoy is told, and it wakes by itself."""
    async with running_stack(tmp_path, engines=2, **patient(tmp_path)) as stack:
        one, other = stack.engines
        prompt = "a prompt that both shall hold " * 40
        for _ in range(4):
            await stack.chat(prompt)
        await order(stack, one, "/sleep?level=1")
        await asleep(stack, one)
        row = (await stages(stack))[one.address]
        assert row["sleep"]["level"] == "weights_offloaded"
        assert row["sleep"]["evidence"].startswith(("is_sleeping, metrics", "metrics"))
        assert (row["index_blocks"], row["state"]) == (0, "ready")
        assert await asyncio.to_thread(main, ["endpoints", "--admin", stack.service.admin_address]) == 0
        listed = capfd.readouterr().out.splitlines()
        assert ["asleep (weights_offloaded:" in line for line in listed] == [False, True, False]
        await until(lambda: eds_health(stack)[port(one)] == "DRAINING")
        assert eds_health(stack)[port(other)] != "DRAINING"
        answers = [await stack.chat(f"{number} {prompt}") for number in range(5)]
        assert {(status, headers["x-sim-engine"]) for status, headers, _ in answers} == {(200, "engine-1")}
        filters = (await stack.decisions())[0]["filters"]
        assert "sleep: 1 of 2 match" in filters
        await order(stack, one, "/wake_up")
        await asleep(stack)
        await until(lambda: eds_health(stack)[port(one)] == "HEALTHY")

        async def served() -> bool:
            _, headers, _ = await stack.chat(f"unlike all others {time.monotonic()}")
            return headers["x-sim-engine"] == "engine-0"

        await until(served)
        assert [line["evidence"] for line in stack.logged("endpoint_sleeps")] == ["metrics"]
        assert len(stack.logged("endpoint_wakes")) == 1
        assert changes(stack, one) == []
        assert await stack.violations() == {}


async def test_e17_an_engine_without_the_metric_is_asked(tmp_path: Path) -> None:
    """Older vLLMs say it only at `/is_sleeping`, which also tells a part that woke from the whole."""
    async with running_stack(tmp_path, engines=1, **patient(tmp_path), without=frozenset({"sleep-metric"})) as stack:
        (one,) = stack.engines
        await until(lambda: any(entry["path"] == "/is_sleeping" for entry in one.log.find()))
        await order(stack, one, "/sleep?level=2")
        await asleep(stack, one)
        assert (await stages(stack))[one.address]["sleep"]["evidence"] == "is_sleeping"
        await order(stack, one, "/wake_up?tags=weights")
        await asyncio.sleep(0.7)
        await asleep(stack, one)
        await order(stack, one, "/wake_up?tags=kv_cache")
        await asleep(stack)


async def test_e17_going_to_sleep_amid_traffic_ejects_nobody(tmp_path: Path) -> None:
    """What ran there hangs until it wakes and is answered then; all that comes later goes elsewhere."""
    async with running_stack(tmp_path, engines=2, **patient(tmp_path)) as stack:
        one, other = stack.engines
        traffic = Traffic(stack)
        task = asyncio.create_task(traffic.run())
        try:
            await until(lambda: all(traffic.answered(engine, 0.0) for engine in stack.engines))
            await order(stack, one, "/sleep")
            await asleep(stack, one)
            since = time.monotonic()
            await order(stack, one, "/wake_up?tags=none")  # wakes nothing; what hangs goes on hanging
            await asyncio.sleep(0.7)
            assert traffic.answered(one, since) == 0
            await order(stack, one, "/wake_up")
            woken = time.monotonic()
            await until(lambda: traffic.answered(one, woken) > 0 and traffic.answered(other, woken) > 0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert traffic.failures(0.0) == []
        assert changes(stack, one) == []
        assert await stack.violations() == {}


async def test_e17_failures_of_a_sleeper_lead_to_its_sleep_at_once(tmp_path: Path) -> None:
    """Where metrics are read seldom the first failed request has it asked; nothing is held against it when it wakes."""
    options = patient(tmp_path, "    engine: vllm")
    options["pool"] = options["pool"].replace("interval_s: 0.1, idle_interval_s: 0.1", "enabled: false")
    async with running_stack(tmp_path, engines=2, **options) as stack:
        one, other = stack.engines
        traffic = Traffic(stack)
        task = asyncio.create_task(traffic.run())
        try:
            await until(lambda: all(traffic.answered(engine, 0.0) for engine in stack.engines))
            await fault(stack, one, kind="error_500")
            await order(stack, one, "/sleep")
            began = time.monotonic()
            await asleep(stack, one)
            assert time.monotonic() - began < 2.0
            known = time.monotonic() + 0.2
            await mend(stack, one)
            await order(stack, one, "/wake_up")
            await asleep(stack)
            await until(lambda: traffic.answered(one, known) > 0 and traffic.answered(other, known) > 0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert traffic.failures(known) == []
        row = (await stages(stack))[one.address]
        assert (row["state"], row["health"]["ejections"]) == ("ready", 0)
        assert await stack.violations() == {}


async def test_e17_where_all_sleep_clients_are_told_when_to_come_again(tmp_path: Path) -> None:
    """503 with Retry-After in the shape of the API that was called, and Envoy does not try them by itself."""
    async with running_stack(tmp_path, engines=2, **patient(tmp_path)) as stack:
        for engine in stack.engines:
            await order(stack, engine, "/sleep")
        await asleep(stack, *stack.engines)
        status, headers, body = await stack.chat("anybody there?")
        assert (status, headers["retry-after"], headers["content-type"]) == (503, "5", "application/json")
        assert json.loads(body)["error"]["code"] == "asleep"
        body_of_messages = {"model": "sim/chat-8b", "max_tokens": 4, "messages": [{"role": "user", "content": "hey"}]}
        status, headers, body = await stack.post("/v1/messages", body_of_messages)
        assert (status, headers["retry-after"]) == (503, "5")
        assert json.loads(body)["error"]["type"] == "overloaded_error"
        assert {line["reason"] for line in stack.logged("request_refused")} == {"asleep"}
        await until(lambda: set(eds_health(stack).values()) == {"DRAINING"})
        assert not any(engine.slumber.level is None for engine in stack.engines), "nobody was woken"
        assert await stack.violations() == {}


async def test_e17_where_all_sleep_one_is_woken_if_that_is_configured(tmp_path: Path) -> None:
    """Requests wait for it, one call is made, and the other engine sleeps on; weights that are gone are not woken."""
    async with running_stack(tmp_path, engines=2, **patient(tmp_path, "    queue: {wake_s: 10}")) as stack:
        one, other = stack.engines
        await order(stack, one, "/sleep?level=2")
        await order(stack, other, "/sleep?level=1")
        other.slumber.wakes_in = 0.5
        await asleep(stack, one, other)
        answers = await asyncio.gather(*(stack.chat(f"{number} wake up") for number in range(6)))
        assert {(status, headers["x-sim-engine"]) for status, headers, _ in answers} == {(200, "engine-1")}
        calls = [entry for engine in stack.engines for entry in engine.log.find() if entry["path"] == "/wake_up"]
        assert len(calls) == 1
        await asleep(stack, one)
        async with stack.client.get(f"http://{stack.service.admin_address}/metrics") as page:
            text = await page.text()
        assert 'kvpicker_wake_calls_total{result="ok"} 1' in text
        assert f'kvpicker_endpoint_lifecycle{{endpoint="{one.address}",pool="main",stage="asleep"}} 1' in text
        assert await stack.violations() == {}


async def test_e17_an_engine_that_does_not_wake_costs_its_time_and_no_more(tmp_path: Path) -> None:
    """After the wait 503 with the same reason; its refusals are logged, and it is not asked without a pause."""
    async with running_stack(tmp_path, engines=1, **patient(tmp_path, "    queue: {wake_s: 1}")) as stack:
        (one,) = stack.engines
        await order(stack, one, "/sleep")
        await asleep(stack, one)
        async with stack.client.post(
            f"{one.url}/sim/faults", json={"kind": "status", "value": 500, "path": "/wake_up"}
        ) as answer:
            assert answer.status == 200
        began = time.monotonic()
        status, headers, body = await stack.chat("wake up")
        assert 0.9 < time.monotonic() - began < 3.0
        assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (503, "1", "asleep")
        assert [line["reason"] for line in stack.logged("wake_failed")] == ["refused"]
        assert changes(stack, one) == []
