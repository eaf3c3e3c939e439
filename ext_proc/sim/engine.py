"""A simulated vLLM engine: in process for tests, or as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from ext_proc.sim.admin import Admin
from ext_proc.sim.driver import Driver
from ext_proc.sim.faults import FaultBook
from ext_proc.sim.metrics_page import MetricsPage
from ext_proc.sim.options import DEFAULT_MODEL, FEATURES, EngineOptions
from ext_proc.sim.request_log import RequestLog
from ext_proc.sim.scheduler import PRESETS, Scheduler
from ext_proc.sim.server import EngineServer
from ext_proc.sim.slumber import Slumber

__all__ = ["EngineOptions", "SimEngine", "add_arguments", "run"]

SHUTDOWN_SECONDS = 0.2
"""Seconds that running requests have to end by themselves when the engine stops."""

BACKLOG = 1024


class SimEngine:
    """A simulated engine that listens while its context is entered."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.scheduler = Scheduler(PRESETS[self.options.preset], self.options.limits)
        self.slumber = Slumber()
        told = None if "sleep-metric" in self.options.without else self.slumber
        self.metrics = MetricsPage(self.scheduler, self.options.models[0], told)
        self.driver = Driver(self.scheduler, self.options.speed, self.metrics)
        # Reproducible on purpose: it decides which requests a fault hits.
        self.faults = FaultBook(random.Random(self.options.seed))  # noqa: S311
        self.log = RequestLog(self.options.record)
        self._admin = Admin(self.driver, self.metrics, self.faults, self.log)
        self._server = EngineServer(self.options, self._admin, self.slumber)
        self._stack = AsyncExitStack()
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """`host:port` that it listens on, IPv6 in brackets."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{host}:{self._port}"

    @property
    def kv_ports(self) -> tuple[int, int] | None:
        """Ports of its KV events and of the answers to who missed some; None if it publishes none."""
        journal = self.scheduler.cache.journal
        return None if journal is None else journal.ports

    @property
    def url(self) -> str:
        """Base URL of its HTTP server."""
        return f"http://{self.address}"

    async def __aenter__(self) -> Self:
        # Raw bodies are recorded, so aiohttp must not decompress them; a client that leaves frees its blocks.
        http = web.Server(self._server, handler_cancellation=True, auto_decompress=False, access_log=None)
        self._stack.enter_context(self.log.writing_to(self.options.record_file))
        await self._publish()
        self._runner = web.ServerRunner(http, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        self._port = self.options.port
        await self._listen()
        self._server.name = self.options.name or self.address
        self._admin.refuse = self.refuse
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.stop()
        self.driver.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._stack.aclose()

    async def refuse(self, seconds: float) -> None:
        """Refuse connections for that long; connections that exist close as soon as they are idle."""
        if self._runner is None or self._site is None:
            return
        await self._site.stop()
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if connection in self._server.busy:
                connection.close()
            else:
                connection.force_close()
        await asyncio.sleep(seconds)
        await self._listen()

    async def _publish(self) -> None:
        options = self.options
        if options.kv_events is None:
            return
        from ext_proc.sim.kv_events import KvPublisher  # noqa: PLC0415  an optional package

        publisher = KvPublisher(
            options.host,
            options.kv_events,
            options.kv_replay,
            block_size=options.block_size,
            model=options.models[0],
        )
        self.scheduler.cache.journal = await self._stack.enter_async_context(publisher)

    async def _listen(self) -> None:
        assert self._runner is not None  # noqa: S101 - set by __aenter__, which is the only way here
        self._site = web.TCPSite(self._runner, self.options.host, self._port, backlog=BACKLOG)
        await self._site.start()
        self._port = self._runner.addresses[0][1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `sim-engine` command."""
    defaults = EngineOptions()
    add = parser.add_argument
    add("--host", default=defaults.host, help="address to listen on (%(default)s)")
    add("--port", type=int, default=0, help="port to listen on; 0 takes a free one (%(default)s)")
    add("--model", action="append", metavar="NAME", help=f"a model it serves, repeatable ({DEFAULT_MODEL})")
    add("--preset", choices=sorted(PRESETS), default=defaults.preset, help="hardware it plays (%(default)s)")
    add("--speed", type=_speed, default=1.0, help="divides all times; 0 or inf: no delay (%(default)s)")
    add("--kv-tokens", type=_positive, help="KV memory in tokens (the preset's)")
    add("--block-size", type=_positive, default=defaults.block_size, help="tokens per block (%(default)s)")
    add("--max-num-seqs", type=_positive, default=defaults.max_num_seqs, help="batch size (%(default)s)")
    add("--max-waiting", type=int, help="sequences that may wait before it answers 503 (no bound)")
    add("--retry-after", type=float, help="seconds for the Retry-After header of that 503 (none)")
    add("--max-model-len", type=_positive, help="longest prompt with its answer in tokens (131072)")
    add("--record", type=int, default=defaults.record, help="received requests it remembers (%(default)s)")
    add("--record-file", type=Path, metavar="FILE", help="where received requests are written as well (nowhere)")
    add("--kv-events", type=int, metavar="PORT", help="port to publish KV events at; 0 takes a free one (none)")
    add("--kv-replay", type=int, metavar="PORT", default=0, help="port to ask for missed ones; 0 takes a free one")
    add("--without", action="append", choices=FEATURES, default=[], help="a feature it lacks, repeatable")
    add("--name", default="", help="what it calls itself in the x-sim-engine header (its address)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; prints `{"address": "HOST:PORT"}` once it listens. Returns the exit code."""
    options = EngineOptions(
        host=arguments.host,
        port=arguments.port,
        models=tuple(arguments.model or (DEFAULT_MODEL,)),
        preset=arguments.preset,
        speed=arguments.speed,
        kv_tokens=arguments.kv_tokens,
        block_size=arguments.block_size,
        max_num_seqs=arguments.max_num_seqs,
        name=arguments.name,
        max_waiting=arguments.max_waiting,
        retry_after=arguments.retry_after,
        max_model_len=arguments.max_model_len,
        record=arguments.record,
        record_file=arguments.record_file,
        kv_events=arguments.kv_events,
        kv_replay=arguments.kv_replay,
        without=frozenset(arguments.without),
    )
    try:
        asyncio.run(_serve(options))
    except OSError as error:
        print(f"sim-engine: cannot listen: {error}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 1
    return 0


async def _serve(options: EngineOptions) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with SimEngine(options) as engine:
        ports = {} if engine.kv_ports is None else dict(zip(("kv_events", "kv_replay"), engine.kv_ports, strict=True))
        print(json.dumps({"address": engine.address, **ports}), flush=True)  # noqa: T201 - a command's own output
        await stopped.wait()


def _speed(text: str) -> float:
    value = float(text)
    if math.isnan(value) or value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value or math.inf


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
