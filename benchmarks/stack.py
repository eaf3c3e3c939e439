"""Starts what is measured: Envoys, kvpicker, the no-op server and the load generator, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.bodies import MODEL
from ext_proc.bootstrap import EnvoyOptions, render
from ext_proc.bootstrap.options import Profile
from ext_proc.local import processes
from ext_proc.local.envoy import EnvoyProcess
from ext_proc.sim.options import EngineOptions

BytesCall: TypeAlias = Any  # grpc.aio.StreamStreamCall[bytes, bytes], which is generic in stubs only

ENGINES = 8
START_TIMEOUT = 30.0
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 400}},
}


class Server(NamedTuple):
    """An ext_proc server that runs."""

    address: str
    pid: int


class Gateway(NamedTuple):
    """An Envoy that takes requests on a local port."""

    port: int
    pid: int
    stats: Callable[[str], Awaitable[dict[str, int]]]


@asynccontextmanager
async def engines(binary: Path, *, stream: bool = False) -> AsyncIterator[tuple[int, tuple[str, ...]]]:
    """Run an Envoy that answers at once on several ports, as light as an engine can be; gives its pid and them.

    With `stream` every answer is an event stream.
    """
    names = [f"engine_{number}" for number in range(ENGINES)]
    config = {
        "admin": {"address": _address("127.0.0.1", 0)},
        "static_resources": {"listeners": [_answering(name, stream=stream) for name in names]},
    }
    async with EnvoyProcess(json.dumps(config), binary, concurrency=1) as envoy:
        ports = [await envoy.port(name) for name in names]
        yield envoy.pid, tuple(f"127.0.0.1:{port}" for port in ports)


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _answering(name: str, *, stream: bool) -> dict[str, Any]:
    prefix = "type.googleapis.com/envoy.extensions.filters"
    text = f"data: {json.dumps(ANSWER)}\n\n" if stream else json.dumps(ANSWER)
    kind = "text/event-stream" if stream else "application/json"
    answer = {"status": 200, "body": {"inline_string": text}}
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "direct_response": answer}],
        "response_headers_to_add": [{"header": {"key": "content-type", "value": kind}}],
    }
    manager = {
        "@type": f"{prefix}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{prefix}.http.router.v3.Router"}},
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"name": name, "address": _address("127.0.0.1", 0), "filter_chains": [{"filters": filters}]}


@asynccontextmanager
async def sim_engine(options: EngineOptions, name: str) -> AsyncIterator[str]:
    """Run a simulated engine of one model that listens on a free port; gives its address."""
    command = [sys.executable, "-m", "ext_proc.cli", "sim-engine", "--model", options.models[0], "--name", name]
    command += ["--preset", options.preset, "--speed", str(options.speed)]
    command += ["--kv-tokens", str(options.limits.kv_tokens), "--block-size", str(options.block_size)]
    command += ["--max-num-seqs", str(options.max_num_seqs)]
    process = await processes.spawn(*command, output=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT)
        yield json.loads(line)["address"]
    finally:
        await processes.stop(process)


@asynccontextmanager
async def gateway(
    binary: Path,
    endpoints: Sequence[str],
    processor: str,
    *,
    picks: bool = True,
    logs: bool = False,
    first_token: bool = False,
    duplex: bool = False,
    profile: Profile = "lean",
    priority_header: str | None = None,
) -> AsyncIterator[Gateway]:
    """Run an Envoy with a profile.

    Args:
        binary: the Envoy.
        endpoints: the engines.
        processor: address of the ext_proc server.
        picks: False leaves the ext_proc filter out.
        logs: True for the access log that the profile has.
        first_token: True to show each streamed answer until its first token.
        duplex: True to send both bodies of the lean profile in full duplex, as gateways do.
        profile: the profile.
        priority_header: the header that holds the priority of a request.
    """
    options = EnvoyOptions(
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        processors=(processor,),
        endpoints=tuple(endpoints),
        # Whatever goes wrong must show as an error, not as a request that skipped the picker.
        failure_mode="closed",
        first_token=first_token,
        profile=profile,
        priority_header=priority_header,
        message_timeout=5.0,
    )
    config = render(options)
    chains = config["static_resources"]["listeners"][0]["filter_chains"]
    manager = chains[0]["filters"][0]["typed_config"]
    if not logs:
        del manager["access_log"]
    if duplex:
        _send_all(manager)
    if not picks:
        kept = [entry for entry in manager["http_filters"] if entry["name"] != "envoy.filters.http.ext_proc"]
        manager["http_filters"] = kept
    async with EnvoyProcess(json.dumps(config), binary, concurrency=1) as envoy:
        yield Gateway(await envoy.port(), envoy.pid, envoy.stats)


def _send_all(manager: dict[str, Any]) -> None:
    """Let the ext_proc filter of a connection manager send everything in full duplex, and leave other readers out."""
    full, send = "FULL_DUPLEX_STREAMED", "SEND"
    kept = [entry for entry in manager["http_filters"] if entry["name"] != "envoy.filters.http.lua"]
    (filter_,) = (entry["typed_config"] for entry in kept if entry["name"] == "envoy.filters.http.ext_proc")
    filter_["processing_mode"] = {
        f"{side}_{part}_mode": full if part == "body" else send
        for side in ("request", "response")
        for part in ("header", "body", "trailer")
    }
    filter_.pop("forward_rules", None)
    manager["http_filters"] = kept


@asynccontextmanager
async def kvpicker(
    folder: Path,
    endpoints: Sequence[str | Mapping[str, Any]],
    strategy: str = "least-wait",
    **sections: Mapping[str, Any],
) -> AsyncIterator[Server]:
    """Run `kvpicker serve` on a Unix socket in the folder; `sections` go into its configuration file."""
    socket = f"unix:{folder}/kvpicker.sock"
    pool = {"endpoints": list(endpoints), "models": [MODEL], "strategy": {"name": strategy}}
    config = {
        "listen": [socket],
        "admin": {"listen": "127.0.0.1:0"},
        "pools": {"bench": pool},
        "failure_mode": "refuse",  # a fault must show as an error, as in `gateway`
        "drain_s": 0,
        **sections,
    }
    file = folder / "kvpicker.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "ext_proc.cli", "serve", str(file)]
    async with _server(command, socket, folder / "kvpicker.log") as server:
        yield server


@asynccontextmanager
async def no_op(
    folder: Path,
    endpoints: Sequence[str],
    record: Path | None = None,
    *,
    duplex: bool = False,
    transport: str = "auto",
) -> AsyncIterator[Server]:
    """Run the no-op server on a Unix socket in the folder; `duplex` lets it echo bodies."""
    socket = f"unix:{folder}/no-op.sock"
    command = [sys.executable, "-m", "benchmarks.noop", socket, *endpoints, "--transport", transport]
    if record is not None:
        command += ["--record", str(record)]
    if duplex:
        command.append("--duplex")
    async with _server(command, socket, folder / "no-op.log") as server:
        yield server


def channel(address: str) -> grpc.aio.Channel:
    """Open a channel to a server."""
    # A Unix socket's path would be the `:authority`, which some servers refuse.
    return grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),))


@asynccontextmanager
async def _server(command: Sequence[str], socket: str, log: Path) -> AsyncIterator[Server]:
    with log.open("wb") as output:
        process = await processes.spawn(*command, output=output)
    try:
        await _wait_until_ready(socket, process, log)
        yield Server(socket, process.pid)
    finally:
        await processes.stop(process)


async def _wait_until_ready(socket: str, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    question = health_pb2.HealthCheckRequest(service="readiness")
    async with channel(socket) as opened:
        check = health_pb2_grpc.HealthStub(opened).Check
        while True:
            try:
                answer = await check(question, wait_for_ready=True, timeout=1)
            except grpc.aio.AioRpcError:
                answer = None
            if answer is not None and answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            if process.returncode is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not become ready: {_end(log)}")
            await asyncio.sleep(0.05)


def _end(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


class LoadGenerator:
    """The process that sends requests, driven by one command at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    async def run(
        self, port: int, size: int, connections: int, stream: bool = False, *, seconds: float
    ) -> dict[str, Any]:
        """Load a port; raises RuntimeError if the generator failed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: PT018, S101  both are pipes
        command = {"port": port, "size": size, "connections": connections, "seconds": seconds, "stream": stream}
        stdin.write(json.dumps(command).encode() + b"\n")
        line = await stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        result: dict[str, Any] = json.loads(line)
        return result


@asynccontextmanager
async def load_generator() -> AsyncIterator[LoadGenerator]:
    """Run the load generator."""
    process = await asyncio.create_subprocess_exec(
        *processes.die_with_parent(sys.executable, "-m", "benchmarks.load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield LoadGenerator(process)
    finally:
        await processes.stop(process)
