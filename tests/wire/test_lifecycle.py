"""Endpoints are drained, fall ill and go while Envoy carries their streams."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.cli import main
from ext_proc.core.model import Endpoint
from ext_proc.sim.engine import SimEngine
from ext_proc.sources.eds import HostHealth, Offer
from tests.waiting import until
from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy

STREAMS = 50


def drain(stack: Stack, engine: SimEngine) -> asyncio.Task[int]:
    """Run `kvpicker drain --wait` in a thread."""
    options = ["--admin", stack.service.admin_address, "--token-file", str(stack.token_file)]
    command = ["drain", engine.address, "--wait", "--deadline", "30s", *options]
    return asyncio.create_task(asyncio.to_thread(main, command))


def say_ill(stack: Stack, *engines: SimEngine) -> None:
    """Have Envoy told from now on that these are ill, which health alone would not say of more than half of a pool."""
    ill, offer = {engine.address for engine in engines}, stack.service._keeper._offer

    def offered(endpoint: Endpoint) -> Offer:
        return Offer(HostHealth.UNHEALTHY) if endpoint.address in ill and is_active(endpoint) else offer(endpoint)

    def is_active(endpoint: Endpoint) -> bool:
        return stack.service._core.lifecycle.stage(endpoint.slot) == "active"

    stack.service._keeper._offer = offered


class Streams:
    """Streams that run, and how each ended."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        self.begun: list[str] = []
        self.whole: list[float] = []
        self.cut: list[str] = []
        self._stack = stack
        self._tokens = tokens
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, count: int) -> None:
        """Open streams and wait until each has begun."""
        wanted = len(self.begun) + count
        self._tasks += [asyncio.create_task(self._run(number)) for number in range(count)]
        await until(lambda: len(self.begun) + len(self.cut) >= wanted)

    async def end(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks)

    async def _run(self, number: int) -> None:
        message = {"role": "user", "content": f"Tell me story number {number}. " * 5}
        body: dict[str, Any] = {"model": MODEL, "max_tokens": self._tokens, "ignore_eos": True, "stream": True}
        body["messages"] = [message]
        try:
            async with self._stack.client.post(f"{self._stack.url}/v1/chat/completions", json=body) as answer:
                self.begun.append(answer.headers["x-sim-engine"])
                text = await answer.read()
        except aiohttp.ClientError as error:
            self.cut.append(repr(error))
            return
        if text.rstrip().endswith(b"data: [DONE]"):
            self.whole.append(time.monotonic())
        else:
            self.cut.append("no end")


async def test_drain_of_an_engine_with_fifty_running_streams(tmp_path: Path) -> None:
    """None is cut, nothing new comes there, and the command returns 0 when the last one has ended."""
    async with running_stack(tmp_path, engines=2, speed=1.0) as stack:
        leaving, staying = stack.engines
        stack.list_engines([leaving.address])
        await until(lambda: len(stack.service._core.registry.snapshot.endpoints) == 1)
        streams = Streams(stack, tokens=200)
        await streams.start(STREAMS)
        assert streams.begun == ["engine-0"] * STREAMS
        stack.list_engines([leaving.address, staying.address])
        await until(lambda: len(stack.service._core.registry.snapshot.by_model.get(MODEL, ())) == 2)
        command = drain(stack, leaving)
        await until(lambda: '"DRAINING"' in stack.eds_file.read_text())
        running = STREAMS - len(streams.whole)
        answers = await asyncio.gather(*(stack.chat(f"unique {number}") for number in range(20)))
        assert {headers["x-sim-engine"] for _, headers, _ in answers} == {"engine-1"}
        assert running >= STREAMS // 2
        assert not command.done()
        assert await command == 0
        returned = time.monotonic()
        await streams.end()
        assert (len(streams.whole), streams.cut) == (STREAMS, [])
        assert -1 < returned - max(streams.whole) < 2
        assert len(stack.service._core.ledger) == 0
        assert await stack.violations() == {}


async def test_no_state_of_an_endpoint_cuts_its_streams(tmp_path: Path) -> None:
    """Envoy is told that it drains, then that it is unhealthy, then that it is gone; the streams run to their end."""
    async with running_stack(tmp_path, engines=2, speed=1.0) as stack:
        first, second = stack.engines
        streams = Streams(stack, tokens=300)
        await streams.start(12)
        core = stack.service._core
        endpoint = core.registry.snapshot.by_address[first.address]
        command = drain(stack, first)
        await until(lambda: '"DRAINING"' in stack.eds_file.read_text())
        core.lifecycle.undrain(endpoint)
        say_ill(stack, first)
        await until(lambda: '"UNHEALTHY"' in stack.eds_file.read_text())
        stack.list_engines([second.address])
        await until(lambda: f"{endpoint.address.rpartition(':')[2]}" not in stack.eds_file.read_text())
        assert len(streams.whole) < 12
        await streams.end()
        assert (len(streams.whole), streams.cut) == (12, [])
        assert await command == 4  # it was called off


async def test_an_engine_listed_by_name_serves_and_drains_by_name(tmp_path: Path) -> None:
    """The name is looked up for real, and Envoy is told the address."""
    async with running_stack(tmp_path, engines=2) as stack:
        named, other = stack.engines
        name = f"localhost:{named.address.rpartition(':')[2]}"
        stack.list_engines([name, other.address])
        endpoints = stack.service._core.registry
        await until(lambda: {each.name for each in endpoints.snapshot.endpoints} == {name, ""})
        await until(lambda: len(endpoints.snapshot.by_model.get(MODEL, ())) == 2)
        served: list[str] = []

        async def both_served() -> bool:
            served.append((await stack.chat(f"unique {len(served)}"))[1]["x-sim-engine"])
            return set(served) == {"engine-0", "engine-1"}

        await until(both_served)
        options = ["--admin", stack.service.admin_address, "--token-file", str(stack.token_file)]
        assert await asyncio.to_thread(main, ["drain", name.upper(), "--wait", *options]) == 0
        answers = [await stack.chat(f"another {number}") for number in range(12)]
        assert {headers["x-sim-engine"] for _, headers, _ in answers} == {"engine-1"}


async def test_envoys_own_choice_avoids_who_drains_and_needs_somebody(stack: Stack) -> None:
    """While kvpicker is away, nobody who drains is chosen; that all others are ill keeps nobody from serving."""
    say_ill(stack, *stack.engines[1:])
    await until(lambda: stack.eds_file.read_text().count('"UNHEALTHY"') == 2)
    assert await drain(stack, stack.engines[0]) == 0
    await until(lambda: stack.eds_file.read_text().count('"HEALTHY"') == 2)
    await stack.service._grpc.stop(0)
    answers = [await stack.chat(f"unique {number}") for number in range(20)]
    assert {status for status, _, _ in answers} == {200}
    assert {headers["x-sim-engine"] for _, headers, _ in answers} == {"engine-1", "engine-2"}
