"""Two kvpickers behind one Envoy: none leads, so either may go at any time."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.stack import MODEL

pytestmark = pytest.mark.envoy

RATE = 100
READY = health_pb2.HealthCheckResponse.SERVING


class Kvpicker:
    """A process, its log and its socket."""

    def __init__(self, folder: Path, name: str, engines: list[str]) -> None:
        self.socket, self._log = folder / f"{name}.sock", folder / f"{name}.log"
        self._config = folder / f"{name}.yaml"
        self._log.touch()
        config = {
            "listen": [f"unix:{self.socket}"],
            "admin": {"listen": "127.0.0.1:0"},
            "envoy": {"endpoints_file": str(folder / "eds.json")},
            "drain_s": 1.5,
            "log": {"level": "info"},
            "pools": {"main": {"endpoints": engines, "models": [MODEL]}},
        }
        self._config.write_text(json.dumps(config))
        self._process: asyncio.subprocess.Process | None = None

    def logged(self, event: str) -> int:
        """Count its log lines of an event."""
        return self._log.read_bytes().count(f'"{event}"'.encode())

    async def start(self) -> None:
        """Start it and wait until it listens."""
        count = self.logged("server_started")
        command = [sys.executable, "-m", "ext_proc.cli", "serve", str(self._config)]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log)
        await until(lambda: self.logged("server_started") > count, 20.0)

    async def end(self, number: signal.Signals) -> int:
        """End it by a signal; return its exit status."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 20.0)

    async def statuses(self) -> set[int]:
        """Ask for the names that are checked."""
        async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            asked = [health_pb2.HealthCheckRequest(service=n) for n in ("liveness", "readiness", EXT_PROC_SERVICE)]
            return {(await check(request)).status for request in asked}


class Clients:
    """A steady stream of requests, whatever the answers are."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.seen: Counter[int] = Counter()
        self._session, self._url = session, url

    async def run(self) -> None:
        """Send until cancelled, then wait for the last answers."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                tasks.add(asyncio.create_task(self._ask(len(tasks))))
                await asyncio.sleep(1 / RATE)
        finally:
            await asyncio.gather(*tasks)

    async def _ask(self, number: int) -> None:
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": f"unique {number}"}]}
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            self.seen[answer.status] += 1

    async def more(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = self.seen.total() + count
        await until(lambda: self.seen.total() >= wanted, 20.0)


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Kvpicker, Kvpicker, Clients]]:
    """Run two engines, two kvpickers, Envoy and clients."""
    async with AsyncExitStack() as exits:
        options = EngineOptions(speed=50, models=(MODEL,))
        engines = [(await exits.enter_async_context(SimEngine(options))).address for _ in range(2)]
        both = Kvpicker(folder, "one", engines), Kvpicker(folder, "other", engines)
        for kvpicker in both:
            exits.push_async_callback(kvpicker.end, signal.SIGKILL)
        await asyncio.gather(*(kvpicker.start() for kvpicker in both))
        rendered = to_yaml(
            EnvoyOptions(
                envoy_version=found_version(),
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                processors=tuple(f"unix:{kvpicker.socket}" for kvpicker in both),
                endpoints_file=str(folder / "eds.json"),
            )
        )
        envoy = await exits.enter_async_context(EnvoyProcess(rendered, find_envoy(), concurrency=1))
        connector = aiohttp.TCPConnector(limit=0)
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=connector))
        clients = Clients(session, f"http://127.0.0.1:{await envoy.port()}")
        task = asyncio.create_task(clients.run())
        try:
            yield *both, clients
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_kill_and_a_rollout_cost_no_request(tmp_path: Path) -> None:
    """Both are live and ready throughout, the one that is left decides at once, and a rollout ends.

    The case's leader is either of them: there is no election (I11).
    """
    async with pair(tmp_path) as (one, other, clients):
        await clients.more(RATE // 2)
        assert await one.statuses() == await other.statuses() == {READY}
        assert min(one.logged("request_finished"), other.logged("request_finished")) > 0
        await one.end(signal.SIGKILL)
        await clients.more(RATE)
        before = other.logged("request_finished")
        await clients.more(RATE)
        await until(lambda: other.logged("request_finished") >= before + RATE * 9 // 10, 10.0)
        assert await other.statuses() == {READY}
        await one.start()
        before = one.logged("request_finished")
        await until(lambda: one.logged("request_finished") > before, 10.0)
        assert await other.end(signal.SIGTERM) == 0
        assert await one.statuses() == {READY}
        await clients.more(RATE // 2)
    assert set(clients.seen) == {200}, clients.seen
