"""kvpicker is killed and started again under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.stack import MODEL

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

CLIENTS = 64
OUTAGES = 3
LEAST_S = 2.5
"""For an outage and for the time between two: long enough for all timeouts and health checks of Envoy."""

DEADLINE_S = 60.0
TOKENS = 8_000
"""Of a stream that outlasts the test, whose time limit is three minutes, at 25 ms a token."""

HASTE = 100_000.0
"""By which engines are faster in the end, so that nobody waits for that."""


class Outage:
    """A kvpicker process that can be killed, and what clients saw."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "kvpicker.sock"
        self.eds = folder / "eds.json"
        self.seen: Counter[int] = Counter()
        self.bodies: dict[int, bytes] = {}
        self.engines: list[SimEngine] = []
        self.over = False
        self._process: asyncio.subprocess.Process | None = None

    def configure(self, addresses: list[str]) -> None:
        """Write the configuration file."""
        pool = {"endpoints": addresses, "models": [MODEL]}
        config = {
            "listen": [f"unix:{self.socket}"],
            "admin": {"listen": "127.0.0.1:0"},
            "drain_s": 0,
            "envoy": {"endpoints_file": str(self.eds)},
            "pools": {"main": pool},
        }
        (self.folder / "kvpicker.yaml").write_text(json.dumps(config))

    async def start(self) -> None:
        """Start kvpicker and wait until it listens."""
        command = [sys.executable, "-m", "ext_proc.cli", "serve", str(self.folder / "kvpicker.yaml")]
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log)
        lines = (self.folder / "log").read_bytes().count(b"server_started")
        await until(lambda: (self.folder / "log").read_bytes().count(b"server_started") > lines)

    async def kill(self) -> None:
        """Kill kvpicker without a warning."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def client(self, session: aiohttp.ClientSession, url: str, number: int) -> None:
        """Send one request after the other until it is over."""
        for turn in itertools.count():
            if self.over:
                return
            content = f"client {number % 8} " * 40 + str(turn)
            body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": content}]}
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                self.bodies[answer.status] = await answer.read()
                self.seen[answer.status] += 1
            await asyncio.sleep(0.1)

    async def endless(self, session: aiohttp.ClientSession, url: str) -> bytes:
        """Read a stream that outlasts every outage, to its end."""
        message = {"role": "user", "content": "Tell me everything."}
        limits = {"max_tokens": TOKENS, "ignore_eos": True}
        body = {"model": MODEL, "stream": True, "messages": [message], **limits}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return await answer.read()

    async def go_on(self) -> None:
        """Wait for a while, and until all clients may have had an answer, however slow the machine is."""
        wanted = self.seen.total() + 2 * CLIENTS
        await asyncio.sleep(LEAST_S)
        await until(lambda: self.seen.total() >= wanted, DEADLINE_S)

    def hurry(self) -> None:
        """Let the engines come to an end."""
        for engine in self.engines:
            engine.driver._speed = HASTE


@contextlib.asynccontextmanager
async def outage(folder: Path, mode: Any) -> AsyncIterator[tuple[Outage, str]]:
    """Run engines, Envoy and a kvpicker that may die."""
    async with contextlib.AsyncExitStack() as exits:
        engines = [
            await exits.enter_async_context(SimEngine(EngineOptions(preset="a100-70b-tp4", speed=1, models=(MODEL,))))
            for _ in range(3)
        ]
        running = Outage(folder)
        running.engines = engines
        running.configure([engine.address for engine in engines])
        exits.push_async_callback(running.kill)
        await running.start()
        options = EnvoyOptions(
            envoy_version=found_version(),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            processors=(f"unix:{running.socket}",),
            endpoints_file=str(running.eds),
            failure_mode=mode,
        )
        envoy = await exits.enter_async_context(EnvoyProcess(to_yaml(options), find_envoy(), concurrency=1))
        yield running, f"http://127.0.0.1:{await envoy.port()}"


async def endure(running: Outage, url: str) -> list[bytes]:
    """Kill and start kvpicker again while clients send; return the long streams."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(running.endless(session, url)) for _ in range(4)]
        for number in range(CLIENTS):
            tasks.create_task(running.client(session, url, number))
        for _ in range(OUTAGES):
            await running.go_on()
            await running.kill()
            await running.go_on()
            await running.start()
        assert not any(stream.done() for stream in streams)
        running.over = True
        running.hurry()
    return [stream.result() for stream in streams]


def assert_whole(streams: list[bytes]) -> None:
    """Check that no stream was cut."""
    assert all(stream.rstrip().endswith(b"data: [DONE]") for stream in streams)


async def test_open_mode_loses_no_request(tmp_path: Path) -> None:
    """With failure mode open every request is answered, and no running stream is cut."""
    async with outage(tmp_path, "open") as (running, url):
        streams = await endure(running, url)
    assert set(running.seen) == {200}, running.bodies
    assert_whole(streams)


async def test_closed_mode_refuses_clearly(tmp_path: Path) -> None:
    """With failure mode closed the errors are 503 with a clear body, and no running stream is cut."""
    async with outage(tmp_path, "closed") as (running, url):
        streams = await endure(running, url)
    assert set(running.seen) == {200, 503}, running.bodies
    error = json.loads(running.bodies[503])["error"]
    assert "picker" in error["message"]
    assert_whole(streams)
