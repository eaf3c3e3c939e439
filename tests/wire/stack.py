"""A real Envoy between real clients and simulated engines, with kvpicker beside it."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.app import Service
from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.config import load
from ext_proc.core.model import Outcome
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.envoys.builds import found_version
from tests.waiting import until

MODEL = "sim/chat-8b"
FAST = 50.0
TOKEN = "sesame-of-the-tests"
PROFILE = os.environ.get("KVPICKER_PROFILE", "lean")
"""Of the Envoys whose tests do not say another; `make test-envoys` sets it."""


class Stack:
    """What a wire test talks to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[SimEngine] = []
        self.output = io.BytesIO()
        self.service: Service
        self.envoy: EnvoyProcess
        self.client: aiohttp.ClientSession
        self.url = ""

    @property
    def config(self) -> Path:
        """The configuration file of kvpicker."""
        return self.folder / "kvpicker.yaml"

    @property
    def endpoints_file(self) -> Path:
        """The list of engines that kvpicker watches."""
        return self.folder / "engines.yaml"

    @property
    def token_file(self) -> Path:
        """The token that changes the state of endpoints."""
        return self.folder / "token"

    @property
    def eds_file(self) -> Path:
        """The list of engines that Envoy reads."""
        return self.folder / "eds.json"

    def list_engines(self, addresses: Sequence[str]) -> None:
        """Put engines into the watched file."""
        self.endpoints_file.write_text(json.dumps({"endpoints": addresses}))

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request through Envoy; bytes go as they are, all else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"content-type": "application/json", **named}
        async with self.client.post(self.url + path, data=io.BytesIO(data), headers=sent) as answer:
            received = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, received, await answer.read()

    async def chat(self, text: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
        """Send a chat of one user message."""
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **fields}
        return await self.post("/v1/chat/completions", body)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return kvpicker's log lines of an event."""
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def finished(self, count: int) -> list[dict[str, Any]]:
        """Wait until that many requests are known to have finished, and return their log lines."""
        await until(lambda: len(self.logged("request_finished")) >= count)
        return self.logged("request_finished")

    async def log_is_open(self) -> None:
        """Have Envoy open its access log, whose first entries may be lost, by requests that it answers by itself."""
        watch = self.service._log_watch
        heard_at = watch._heard_at

        async def is_heard() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
            writer.write(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")  # without a host
            assert b" 400 " in await reader.read()
            writer.close()
            return watch._heard_at > heard_at

        await until(is_heard)

    async def outcomes(self, count: int) -> list[Outcome]:
        """Wait until that many requests are known to have finished, and return what became of them."""
        await self.finished(count)
        return list(self.service._ring._outcomes.values())

    async def decisions(self) -> list[dict[str, Any]]:
        """Return the explained decisions, latest first."""
        async with self.client.get(f"http://{self.service.admin_address}/debug/decisions?limit=256") as answer:
            found: list[dict[str, Any]] = (await answer.json())["decisions"]
            return found

    async def violations(self) -> dict[str, int]:
        """Return the counters of Envoy that must stay 0 whatever happens."""
        stats = await self.envoy.stats("http.")
        bad = ("spurious_msgs_received", "rejected_header_mutations", "message_timeouts")
        return {name: value for name, value in stats.items() if name.endswith(bad) and value}


@asynccontextmanager
async def running_stack(
    folder: Path,
    *,
    engines: int = 3,
    addresses: Sequence[str] = (),
    strategy: str = "least-wait",
    pool: str = "",
    health: str = "{}",
    transport: str = "auto",
    own_envoy: bool = False,
    top: str = "",
    **options: Any,
) -> AsyncIterator[Stack]:
    """Start engines, kvpicker and Envoy, and stop them in the end.

    Args:
        folder: where the files of the run live.
        engines: how many simulated engines there are.
        addresses: engines that run already.
        strategy: how kvpicker ranks them.
        pool: further YAML lines of the pool.
        health: YAML of the section `health`.
        transport: how kvpicker speaks gRPC.
        own_envoy: True if `pool` holds the section `envoy` too.
        top: further YAML lines of the configuration.
        options: of `EngineOptions`, or of `EnvoyOptions` where they have that name.
    """
    stack = Stack(folder)
    envoy_options: dict[str, Any] = {"profile": PROFILE}
    envoy_options |= {name: options.pop(name) for name in list(options) if name in EnvoyOptions.__struct_fields__}
    engine_options = {"speed": FAST, "models": (MODEL,), "record": 1000, "max_model_len": 2_000_000, **options}
    async with AsyncExitStack() as exits:
        for number in range(engines):
            engine = SimEngine(EngineOptions(name=f"engine-{number}", **engine_options))
            stack.engines.append(await exits.enter_async_context(engine))
        stack.list_engines([*(engine.address for engine in stack.engines), *addresses])
        stack.token_file.write_text(TOKEN)
        stack.config.write_text(f"""
listen: ["127.0.0.1:0"]
transport: {transport}
admin: {{listen: "127.0.0.1:0", token_file: {stack.token_file}}}
drain_s: 0
{top}
{"" if own_envoy else f"envoy: {{endpoints_file: {stack.eds_file}}}"}
health: {health}
pools:
  main:
    strategy: {{name: {strategy}}}
    endpoints_file: {stack.endpoints_file}
{pool}
""")
        stack.service = Service(load(stack.config), stack.config, stack.output)
        await exits.enter_async_context(stack.service)
        rendered = to_yaml(
            EnvoyOptions(
                envoy_version=found_version(),
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                processors=stack.service.grpc_addresses,
                endpoints_file=str(stack.eds_file),
                **envoy_options,
            )
        )
        stack.envoy = await exits.enter_async_context(EnvoyProcess(rendered, find_envoy(), concurrency=1))
        stack.url = f"http://127.0.0.1:{await stack.envoy.port()}"
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        stack.client = await exits.enter_async_context(session)
        await until(lambda: stack.service._core.registry.snapshot.models >= {MODEL})
        yield stack


def needs_retries() -> None:
    """Skip the test where routes have no retries, see `EnvoyOptions.harm_of_retries`."""
    if EnvoyOptions(profile=PROFILE, envoy_version=found_version()).harm_of_retries:
        pytest.skip("this Envoy's routes have no retries")


async def refuse(stack: Stack, engine: SimEngine) -> None:
    """Make an engine refuse connections."""
    url = engine.url
    async with stack.client.post(f"{url}/sim/faults", json={"kind": "refuse", "for": 60}) as answer:
        assert answer.status == 200

    async def refused() -> bool:
        try:
            async with stack.client.get(f"{url}/health"):
                return False
        except aiohttp.ClientError:
            return True

    await until(refused)


async def received(stack: Stack, path: str) -> list[dict[str, Any]]:
    """Return what clients sent to a path, whichever engine got it."""
    entries = [entry for engine in stack.engines for entry in engine.log.find()]
    return [entry for entry in entries if entry["path"].startswith(path) and not asked_by_kvpicker(entry)]


def asked_by_kvpicker(entry: dict[str, Any]) -> bool:
    """Tell kvpicker's own question for models from a client's."""
    return not any(name.lower() == "x-request-id" for name, _ in entry["headers"])
