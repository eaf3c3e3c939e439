"""kvpicker between a gateway's Envoy and engines that note every byte."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ext_proc.app import Service
from ext_proc.bootstrap.versions import gaps, without
from ext_proc.config import load
from ext_proc.core.model import Outcome
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.duplex.raw import Ask, HttpMessage, Mirror, ask, mirrors
from tests.wire.stack import MODEL

Flavour = Callable[..., dict[str, Any]]


class DuplexStack:
    """What these tests talk to."""

    def __init__(self, engines: list[Mirror], service: Service, envoy: EnvoyProcess, output: io.BytesIO) -> None:
        self.engines = engines
        self.service = service
        self.envoy = envoy
        self.ports: dict[str, int] = {}
        self._output = output

    async def ask(self, request: Ask, listener: str = "main") -> HttpMessage | None:
        """Send a request to a listener: `main`, or `front`, from where it goes on as HTTP/2."""
        return await ask(self.ports[listener], request)

    def got(self, case: str) -> HttpMessage:
        """Return the one request that engines got under a name."""
        (found,) = [engine.got[case] for engine in self.engines if case in engine.got]
        return found

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return kvpicker's log lines of an event."""
        self.service._output.flush()
        lines = [json.loads(line) for line in self._output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    @property
    def in_flight(self) -> int:
        """Leases that are open."""
        return len(self.service._core.ledger)

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of the decisions that are settled."""
        return list(self.service._ring._outcomes.values())

    async def streams(self) -> int:
        """Count the ext_proc streams that are open."""
        stats = await self.envoy.stats("cluster.extproc.upstream_rq_active")
        return sum(stats.values())

    async def is_through(self) -> bool:
        """Tell whether no stream is open."""
        return await self.streams() == 0

    async def is_quiet(self) -> bool:
        """Tell whether no stream is open and no request counts as running."""
        return self.in_flight == 0 and await self.streams() == 0

    async def violations(self) -> dict[str, int]:
        """Return the counters of Envoy that must stay 0 whatever happens."""
        stats = await self.envoy.stats("http.")
        bad = ("spurious_msgs_received", "rejected_header_mutations", "message_timeouts", "streams_failed")
        return {name: value for name, value in stats.items() if name.endswith(bad) and value}


@asynccontextmanager
async def running(
    folder: Path,
    flavour: Flavour,
    *,
    transport: str = "auto",
    extra: str = "",
    modes: dict[str, str] | None = None,
    settles: bool = True,
) -> AsyncIterator[DuplexStack]:
    """Start engines, kvpicker and the Envoy of a gateway, and stop them in the end.

    Args:
        folder: where the files of the run live.
        flavour: makes the Envoy's configuration.
        transport: how kvpicker speaks gRPC.
        extra: further YAML lines of kvpicker's configuration.
        modes: how bodies come, in place of the gateway's own.
        settles: False if the gateway shows nothing of answers, so that leases are left to expire.
    """
    output = io.BytesIO()
    async with AsyncExitStack() as exits:
        engines = await exits.enter_async_context(mirrors())
        addresses: Sequence[str] = [engine.address for engine in engines]
        config = folder / "kvpicker.yaml"
        config.write_text(f"""
listen: ["127.0.0.1:0"]
transport: {transport}
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
scrape: {{enabled: false}}
pools: {{main: {{endpoints: {json.dumps(addresses)}, models: [{MODEL}], strategy: {{name: round-robin}}}}}}
{extra}
""")
        service = await exits.enter_async_context(Service(load(config), config, output))
        # A path in a temporary folder of a test is too long for a socket.
        short = exits.enter_context(tempfile.TemporaryDirectory(prefix="kvp-"))
        rendered = flavour(service.grpc_addresses[0], addresses, **(modes or {}))
        text = json.dumps(without(rendered, gaps(found_version()))[0])
        envoy = EnvoyProcess(text.replace("@PIPE@", f"{short}/h2"), find_envoy(), concurrency=1)
        stack = DuplexStack(engines, service, await exits.enter_async_context(envoy), output)
        stack.ports = {name: await envoy.port(name) for name in ("main", "front")}
        yield stack
        await until(stack.is_quiet if settles else stack.is_through)
        assert await stack.violations() == {}


@pytest.fixture
def chat() -> bytes:
    """A body that kvpicker understands."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "List three rivers. " * 30}]}).encode()
