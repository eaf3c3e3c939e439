"""What the comparison compares: ways from one URL to the same engines, each started anew for every run."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import aiohttp

from benchmarks import stack
from benchmarks.engines.environments import Environment
from benchmarks.engines.vllm_engine import MODEL, VllmEngine, free_ports
from ext_proc.bootstrap.binary import find_envoy
from ext_proc.local import processes

READY_S = 120.0

Engines: TypeAlias = Sequence[VllmEngine]


class Way(NamedTuple):
    """A way to the engines that runs.

    Attributes:
        url: where clients send their requests.
        admin: kvpicker's admin server; empty for others.
    """

    url: str
    admin: str = ""


class Contestant(NamedTuple):
    """One way to the engines, and how it is started."""

    name: str
    start: Callable[[Engines], AbstractAsyncContextManager[Way]]


def kvpicker(name: str, strategy: str = "least-wait", tokens: Mapping[str, Any] | None = None) -> Contestant:
    """Return kvpicker behind a stock Envoy; with `tokens` it listens to KV events and knows the tokens of requests."""

    @asynccontextmanager
    async def start(engines: Engines) -> AsyncIterator[Way]:
        events = {"kv_events": {"port": 1}, "tokens": dict(tokens)} if tokens is not None else {}
        listed = [engine.settings if tokens is not None else engine.address for engine in engines]
        pool = {"endpoints": listed, "models": [MODEL], "strategy": {"name": strategy}, **events}
        admin = f"127.0.0.1:{free_ports(1)[0]}"
        addresses = [engine.address for engine in engines]
        with tempfile.TemporaryDirectory(prefix="kvpicker-engines-") as folder:
            serving = stack.kvpicker(
                Path(folder), [], pools={"engines": pool}, admin={"listen": admin}, log={"level": "warning"}
            )
            async with (
                serving as server,
                stack.gateway(find_envoy(), addresses, server.address, logs=True) as gateway,
            ):
                yield Way(f"http://127.0.0.1:{gateway.port}", f"http://{admin}")

    return Contestant(name, start)


def peer(name: str, environment: Environment, program: str, log: Path) -> Contestant:
    """Return a router from PyPI with its cache-aware policy and its own defaults."""

    @asynccontextmanager
    async def start(engines: Engines) -> AsyncIterator[Way]:
        port, metrics = free_ports(2)
        command: list[str | Path] = [environment.program(program), "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "cache_aware", "--prometheus-port", str(metrics), "--log-level", "warn"]
        command += ["--worker-startup-check-interval", "1"]  # only the start is waited for
        command += ["--worker-urls", *(engine.url for engine in engines)]
        with log.open("ab") as output:
            process = await processes.spawn(*command, output=output)
        try:
            url = f"http://127.0.0.1:{port}"
            await _answering(url, process, log)
            yield Way(url)
        finally:
            await processes.stop(process)

    return Contestant(name, start)


async def _answering(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait until a router passes requests on to the engines."""
    deadline = time.monotonic() + READY_S
    question = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        while True:
            try:
                async with session.post(url + "/v1/chat/completions", json=question) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            if process.returncode is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the router at {url} does not pass requests on: {_end(log)}")
            await asyncio.sleep(0.2)


def _end(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
