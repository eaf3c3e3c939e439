"""A vLLM on CPU as a child process: started, asked whether it is ready, emptied, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp

from benchmarks.engines.environments import Environment
from ext_proc.local import processes

MODEL = "real/chat"
BLOCK_TOKENS = 32
"""The smallest that attention on a CPU takes; its default is 128."""

START_S = 600.0
"""A start takes half a minute on an idle machine with two cores."""

STOP_S = 15.0
_LOG_END = 4_000


class EngineFailed(Exception):
    """An engine did not start; the text is the end of its log."""


class Ports(NamedTuple):
    """Where an engine listens: HTTP, KV events, their replay; data-parallel ranks take the ports after the last two."""

    http: int
    events: int
    replay: int


class VllmEngine:
    """One engine; the same object may be started again, at the same ports, after it was stopped.

    Args:
        environment: has vLLM.
        model: folder of the model.
        ports: where it listens.
        log: file that takes what it says.
        blocks: blocks of its KV cache.
        adapters: LoRA adapters by name.
        ranks: data-parallel ranks, each with a cache of its own of so many blocks.
        core: the processor core that it keeps to, so that it is no faster while another engine has nothing to do, as
            engines on machines of their own are not; None for any.
    """

    def __init__(
        self,
        environment: Environment,
        model: Path,
        ports: Ports,
        log: Path,
        *,
        blocks: int = 500,
        adapters: Sequence[tuple[str, Path]] = (),
        ranks: int = 1,
        core: int | None = None,
    ) -> None:
        self.ports = ports
        self.address = f"127.0.0.1:{ports.http}"
        self.url = f"http://{self.address}"
        self.ranks = ranks
        self.kv_tokens = ranks * blocks * BLOCK_TOKENS
        self._environment = environment
        self._core = core
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # An address without a wildcard would be connected to, not listened at.
            "endpoint": f"tcp://*:{ports.events}",
            "replay_endpoint": f"tcp://*:{ports.replay}",
            "topic": f"kv@{self.address}@{MODEL}",
        }
        self._arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        self._arguments += ["--served-model-name", MODEL, "--load-format", "dummy", "--enforce-eager"]
        self._arguments += ["--host", "127.0.0.1", "--port", str(ports.http), "--max-model-len", "8192"]
        self._arguments += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks)]
        self._arguments += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)]
        if ranks > 1:
            self._arguments += ["--data-parallel-size", str(ranks), "--api-server-count", "1"]
        if adapters:
            named = [f"{name}={folder}" for name, folder in adapters]
            self._arguments += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", *named]

    async def __aenter__(self) -> Self:
        """Start it; raises EngineFailed if it does not become ready."""
        await self.start()
        try:
            await self.ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    @property
    def settings(self) -> dict[str, Any]:
        """Its entry in kvpicker's configuration."""
        return {
            "address": self.address,
            "kv_events_port": self.ports.events,
            "kv_replay_port": self.ports.replay,
        }

    async def start(self) -> None:
        """Start it; `ready` waits until it answers."""
        with self._log.open("ab") as output:
            self._process = await processes.spawn(
                self._environment.python, *self._arguments, output=output, env=_environ()
            )
        if self._core is not None:  # what it starts later inherits it
            os.sched_setaffinity(self._process.pid, {self._core})

    async def ready(self) -> None:
        """Wait until it answers.

        Raises:
            EngineFailed: it ended, or does not answer in time.
        """
        assert self._process is not None  # noqa: S101  it was started
        deadline = time.monotonic() + START_S
        async with aiohttp.ClientSession() as session:
            while True:
                if self._process.returncode is not None or time.monotonic() > deadline:
                    log = self._log.read_text(encoding="utf-8", errors="replace")
                    raise EngineFailed(f"{self.address} did not start: {log[-_LOG_END:]}")
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)

    async def reset(self, session: aiohttp.ClientSession) -> None:
        """Empty its cache; while requests run it would not be emptied."""
        async with session.post(f"{self.url}/reset_prefix_cache") as answer:
            answer.raise_for_status()

    async def stop(self) -> None:
        """Stop it and the processes that it started; harmless if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        await processes.stop(process, STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own


def _environ() -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # more would spin, and take the cores from each other
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
    }


def neighbouring_ports(count: int) -> list[int]:
    """Return ports that follow each other and that nobody listens at."""
    while True:
        first = free_ports(1)[0]
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at; kept open together, so that no two are the same."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
