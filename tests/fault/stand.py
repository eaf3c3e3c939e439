"""Engines, Envoy and kvpickers, each a process of its own that can be killed, stopped and starved by its id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.bootstrap import EnvoyOptions
from ext_proc.bootstrap.document import render
from ext_proc.bootstrap.names import ACCESS_LOG
from ext_proc.local.child import Child, ChildFailed, kvpicker
from ext_proc.local.envoy import find_envoy
from ext_proc.local.lifeline import Lifeline
from tests.fault.envoy import Envoy
from tests.fault.ledger import Received, read_records
from tests.fault.load import MODEL
from tests.fault.relay import Relay
from tests.waiting import until

PRESET = "a100-70b-tp4"
IDLE_S = 5.0
"""Envoy gives up on an engine that is silent for so long."""

LEASE_S = 10.0
"""A request of which Envoy says nothing for so long is taken to have ended."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of.

    Attributes:
        engines: how many there are at first.
        kvpickers: how many there are.
        relayed: whether the access log goes through a relay that can be cut.
        settings: further settings of kvpicker.
        pool: further settings of its pool.
        environment: further environment of kvpicker.
        named: whether engines are listed by host names, `NAME.test`.
        kv_events: whether engines publish KV events.
    """

    engines: int = 4
    kvpickers: int = 1
    relayed: bool = False
    settings: dict[str, Any] = {}
    pool: dict[str, Any] = {}
    environment: dict[str, str] = {}
    named: bool = False
    kv_events: bool = False


class Process:
    """A process that can be ended and begun again at the same address."""

    def __init__(self, name: str, lifeline: Lifeline, announces: str) -> None:
        self.name = name
        self.announced: dict[str, Any] = {}
        self._lifeline = lifeline
        self._announces = announces
        self._child: Child | None = None

    def command(self) -> list[str | Path]:
        """Return what to run."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None, f"{self.name} does not run"
        return self._child.pid

    async def start(self) -> None:
        """Begin, and wait until it serves."""
        self._child = Child(self.name, self._lifeline, *self.command(), announces=self._announces)
        await self._child.__aenter__()
        self.announced = await self._child.announcement()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """End it without a warning."""
        self.signal(signal.SIGKILL)
        await self._ended()

    async def stop(self) -> ChildFailed | None:
        """End it in order; harmless if it does not run."""
        if self._child is None:
            return None
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return await self._ended()

    async def _ended(self) -> ChildFailed:
        child, self._child = self._child, None
        assert child is not None
        try:
            return await asyncio.wait_for(child.failure(), 20)
        finally:
            await child.__aexit__(None, None, None)


class EngineProcess(Process):
    """A simulated engine that writes down what it gets."""

    def __init__(
        self, name: str, lifeline: Lifeline, session: aiohttp.ClientSession, *, kv_events: bool = False
    ) -> None:
        super().__init__(name, lifeline, "address")
        self.address = ""
        self.kv_port = self.kv_replay_port = 0
        self._kv_events = kv_events
        self.record = lifeline.folder / f"{name}.jsonl"
        self._session = session

    def command(self) -> list[str | Path]:
        """Run the simulated engine; once it has a port it keeps it."""
        port = self.address.rpartition(":")[2] or "0"
        options = ("--port", port, "--preset", PRESET, "--name", self.name, "--model", MODEL)
        publishes = ("--kv-events", str(self.kv_port), "--kv-replay", str(self.kv_replay_port))
        options = (*options, *publishes) if self._kv_events else options
        return kvpicker("sim-engine", *options, "--record", "0", "--record-file", self.record)

    async def start(self) -> None:
        """Begin, and remember the address and ports."""
        await super().start()
        self.address = self.announced["address"]
        if self._kv_events:
            self.kv_port, self.kv_replay_port = self.announced["kv_events"], self.announced["kv_replay"]

    async def fault(self, **what: Any) -> None:
        """Set up a fault for requests to come."""
        async with self._session.post(f"http://{self.address}/sim/faults", json=what) as answer:
            assert answer.status == 200, await answer.text()

    async def heal(self) -> None:
        """Remove all faults."""
        async with self._session.delete(f"http://{self.address}/sim/faults") as answer:
            assert answer.status == 200

    def received(self) -> list[Received]:
        """Return what it wrote down, in all its lives."""
        return read_records(self.record.read_bytes().splitlines()) if self.record.exists() else []


class KvpickerProcess(Process):
    """A kvpicker behind a Unix socket."""

    def __init__(self, name: str, lifeline: Lifeline, plan: Plan, session: aiohttp.ClientSession) -> None:
        super().__init__(name, lifeline, "grpc")
        self.socket = lifeline.folder / f"{name}.sock"
        self.config = lifeline.folder / f"{name}.yaml"
        self.token = lifeline.folder / "token"
        self._plan = plan
        self._session = session

    def command(self) -> list[str | Path]:
        """Run the service."""
        command = kvpicker("serve", self.config)
        return ["env", *(f"{key}={value}" for key, value in self._plan.environment.items()), *command]

    def configure(self, endpoints: Path, eds: Path) -> None:
        """Write its configuration."""
        config = {
            "listen": [f"unix:{self.socket}"],
            "admin": {"listen": "127.0.0.1:0", "token_file": str(self.token)},
            "drain_s": 2.0,
            "envoy": {"endpoints_file": str(eds)},
            "leases": {"timeout_s": 2 * LEASE_S, "renewal_timeout_s": LEASE_S},
            "pools": {"main": {"endpoints_file": str(endpoints), "models": [MODEL], **self._plan.pool}},
            **self._plan.settings,
        }
        self.config.write_text(json.dumps(config))
        self.token.write_text("a token of this run")

    async def page(self, path: str) -> str:
        """Return a page of its admin server."""
        timeout = aiohttp.ClientTimeout(total=3)
        async with self._session.get(f"http://{self.announced['admin']}{path}", timeout=timeout) as answer:
            return await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        """Sum a metric over all series that have these labels."""
        return (await self.metrics(name, **labels))[0]

    async def metrics(self, *names: str, **labels: str) -> list[float]:
        """Do so with several metrics of one page."""
        families = text_string_to_metric_families(await self.page("/metrics"))
        samples = [
            sample for family in families for sample in family.samples if labels.items() <= sample.labels.items()
        ]
        return [sum(one.value for one in samples if one.name == name) for name in names]

    async def control(self, *words: str) -> None:
        """Run a command on it, and expect that it succeeds."""
        admin = ("--admin", f"http://{self.announced['admin']}", "--token-file", self.token)
        process = await asyncio.create_subprocess_exec(
            *kvpicker(*words, *admin), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()

    async def states(self) -> dict[str, str]:
        """Return the state of each endpoint."""
        endpoints = json.loads(await self.page("/debug/endpoints"))["endpoints"]
        return {endpoint["address"]: endpoint["state"] for endpoint in endpoints}


class Stand:
    """All processes of one run."""

    def __init__(self, lifeline: Lifeline, plan: Plan, session: aiohttp.ClientSession) -> None:
        self.folder = lifeline.folder
        self.endpoints_file = self.folder / "engines.yaml"
        self.eds_file = self.folder / "eds.json"
        self.session = session
        self.engines: list[EngineProcess] = []
        self.kvpickers = [
            KvpickerProcess(f"kvpicker-{number}", lifeline, plan, session) for number in range(plan.kvpickers)
        ]
        self.relay = Relay(self.folder / "relay.sock", self.kvpickers[0].socket)
        self.envoy = Envoy(self.folder, find_envoy(), lifeline)
        self._lifeline = lifeline
        self._plan = plan

    @property
    def culprit(self) -> EngineProcess:
        """The engine that faults befall."""
        return self.engines[0]

    async def add_engine(self) -> EngineProcess:
        """Start one more engine, which nobody is told of yet."""
        name, kv_events = f"engine-{len(self.engines)}", self._plan.kv_events
        engine = EngineProcess(name, self._lifeline, self.session, kv_events=kv_events)
        self.engines.append(engine)
        await engine.start()
        return engine

    def list_engines(self, engines: Sequence[EngineProcess] | None = None) -> None:
        """Put engines into the watched file."""
        listed = self.engines if engines is None else engines
        self.list_addresses([self._listed_as(engine) for engine in listed])

    def list_addresses(self, listed: Sequence[str]) -> None:
        """Put addresses into the watched file."""
        self.list_entries(listed)

    def list_entries(self, listed: Sequence[str | Mapping[str, object]]) -> None:
        """Put entries of any kind into it."""
        other = self.endpoints_file.with_suffix(".new")
        other.write_text(json.dumps({"endpoints": list(listed)}))
        other.rename(self.endpoints_file)

    def _listed_as(self, engine: EngineProcess) -> str:
        return f"{engine.name}.test:{engine.address.rpartition(':')[2]}" if self._plan.named else engine.address

    def set_names(self, how: str) -> None:
        """Have names answered otherwise by a kvpicker that asks a file: `ok`, `lost`, `late` or `empty`."""
        (self.folder / "names").write_text(how)

    def set_clock(self, ahead: float) -> None:
        """Put the wall clock of a kvpicker that reads it from a file so many seconds ahead."""
        (self.folder / "clock").write_text(str(ahead))

    def received(self) -> list[Received]:
        """Return what all engines wrote down."""
        return [one for engine in self.engines for one in engine.received()]

    async def start(self) -> None:
        """Start everything and wait until requests can be placed."""
        if self._plan.engines:
            await asyncio.gather(*(self.add_engine() for _ in range(self._plan.engines)))
            self.list_engines()
        for process in self.kvpickers:
            process.configure(self.endpoints_file, self.eds_file)
        await asyncio.gather(*(process.start() for process in self.kvpickers))
        await self.relay.start()
        await self.envoy.start(self.bootstrap())

    async def stop(self) -> None:
        """Stop everything, whatever state it is in."""
        await self.envoy.stop()
        await self.relay.stop()
        processes: list[Process] = [*self.engines, *self.kvpickers]
        await asyncio.gather(*(process.stop() for process in processes), return_exceptions=True)

    def bootstrap(self) -> str:
        """Render Envoy's configuration, short of patience so that a run need not last minutes."""
        options = EnvoyOptions(
            listen=f"127.0.0.1:{free_port()}",
            admin="127.0.0.1:0",
            processors=tuple(f"unix:{process.socket}" for process in self.kvpickers),
            endpoints_file=str(self.eds_file),
            stream_idle_timeout=IDLE_S,
            log_period=2.0,
        )
        rendered = render(options)
        if self._plan.relayed:
            for cluster in rendered["static_resources"]["clusters"]:
                if cluster["name"] == ACCESS_LOG.format(0):
                    (locality,) = cluster["load_assignment"]["endpoints"]
                    locality["lb_endpoints"][0]["endpoint"]["address"] = {"pipe": {"path": str(self.relay.listens)}}
        return yaml.safe_dump(rendered)


def free_port() -> int:
    """Find a port that nobody uses; an Envoy that takes over from another needs the same one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running_stand(plan: Plan) -> AsyncIterator[Stand]:
    """Run a stand; in the end nothing is left of it."""
    async with AsyncExitStack() as exits:
        lifeline = await exits.enter_async_context(Lifeline())
        connector = aiohttp.TCPConnector(limit=0)
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=connector))
        stand = Stand(lifeline, plan, session)
        exits.push_async_callback(stand.stop)
        await stand.start()
        await until(lambda: settled(stand))
        yield stand


async def settled(stand: Stand) -> bool:
    """Tell whether every kvpicker knows every engine and lets it serve."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
        for process in stand.kvpickers:
            states = await process.states()
            if len(states) < len(stand.engines) or set(states.values()) - {"ready", "degraded"}:
                return False
        return True
    return False
