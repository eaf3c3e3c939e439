"""A gateway for experiments: a real Envoy with the rendered configuration, a scripted picker, an aiohttp engine."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.data.accesslog import v3 as entries
from envoy_data_plane.envoy.service.accesslog import v3 as als
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google.protobuf import Struct
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.bootstrap.binary import find_envoy
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.local.envoy import EnvoyProcess
from tests.envoys.builds import found_version

Script = Callable[[ext_proc.ProcessingRequest], ext_proc.ProcessingResponse | None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEADLINE = 10.0


async def until(value: Callable[[], Any], holds: Callable[[Any], Any] = bool) -> Any:
    """Ask for a value, or await it, until a condition holds for it."""
    deadline = time.monotonic() + DEADLINE
    while True:
        current = value()
        if inspect.isawaitable(current):
            current = await current
        if holds(current):
            return current
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.02)


def pick(*addresses: str, at_headers: bool = False) -> Script:
    """Name endpoints, as kvpicker does: when the body is known, or at once."""

    def script(request: ext_proc.ProcessingRequest) -> ext_proc.ProcessingResponse:
        if request.request_headers is not None and not (at_headers or request.request_headers.end_of_stream):
            return ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())
        named = ",".join(addresses)
        header = core.HeaderValueOption(
            header=core.HeaderValue(key="x-gateway-destination-endpoint", raw_value=named.encode()),
            append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        common = ext_proc.CommonResponse(header_mutation=ext_proc.HeaderMutation(set_headers=[header]))
        metadata = {"envoy.lb": {"x-gateway-destination-endpoint": named}, "kvpicker": {"decision": "d-1"}}
        if request.request_headers is not None:
            answer = ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse(response=common))
        else:
            answer = ext_proc.ProcessingResponse(request_body=ext_proc.BodyResponse(response=common))
        answer.dynamic_metadata = Struct.from_dict(metadata)
        return answer

    return script


class Picker:
    """An ext_proc, access log and health server that answers by a script; None ends the stream."""

    def __init__(self) -> None:
        self.script: Script = pick()
        self.delay = 0.0
        self.requests: list[ext_proc.ProcessingRequest] = []
        self.entries: list[entries.HttpAccessLogEntry] = []
        self.attempts: list[entries.HttpAccessLogEntry] = []
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen; after a stop, at the same address."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    EXT_PROC_SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
                ),
                grpc.method_handlers_generic_handler(
                    "envoy.service.accesslog.v3.AccessLogService",
                    {"StreamAccessLogs": grpc.stream_unary_rpc_method_handler(self._log)},
                ),
            )
        )
        servicer = health.aio.HealthServicer()
        await servicer.set(EXT_PROC_SERVICE, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _process(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            request = ext_proc.ProcessingRequest.parse(data)
            self.requests.append(request)
            await asyncio.sleep(self.delay)
            answer = self.script(request)
            if answer is None:
                return
            await context.write(bytes(answer))
            if request.request_body is not None or answer.immediate_response is not None:
                return

    async def _log(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        while (data := await context.read()) is not grpc.aio.EOF:
            message = als.StreamAccessLogsMessage.parse(data)
            if message.http_logs is not None:
                for entry in message.http_logs.log_entry:
                    common = entry.common_properties
                    is_attempt = common is not None and common.access_log_type == entries.AccessLogType.UpstreamEnd
                    (self.attempts if is_attempt else self.entries).append(entry)
        return b""


class Engine:
    """An HTTP server that answers by a handler and remembers what it was asked."""

    def __init__(self) -> None:
        self.handler: Handler = self._echo
        self.requests: list[tuple[web.BaseRequest, bytes]] = []
        self.address = ""
        self._protocol = web.Server(self._serve)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen at a free port."""
        self._server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
            await self._protocol.shutdown(0)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request, await request.content.read()))
        return await self.handler(request)

    @staticmethod
    async def _echo(_: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"ok": True})


class Gateway:
    """Envoy, picker and engines."""

    def __init__(self, envoy: EnvoyProcess, url: str, picker: Picker, engines: list[Engine]) -> None:
        self.envoy = envoy
        self.url = url
        self.picker = picker
        self.engines = engines
        self.session = aiohttp.ClientSession()

    @property
    def engine(self) -> Engine:
        """The first engine."""
        return self.engines[0]

    async def post(
        self, path: str = "/v1/chat/completions", data: bytes = b"{}", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to a request."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.session.post(
            self.url + path, data=io.BytesIO(data), headers={"content-type": "application/json"} | named
        ) as answer:
            return answer.status, {key.lower(): value for key, value in answer.headers.items()}, await answer.read()

    async def rejected_mutations(self) -> int:
        """How many headers of the picker Envoy has refused."""
        return (await self.envoy.stats("http.entry.ext_proc.")).get("http.entry.ext_proc.rejected_header_mutations", 0)

    async def entry(self) -> entries.HttpAccessLogEntry:
        """The next access log entry."""
        await until(lambda: self.picker.entries)
        return self.picker.entries.pop(0)

    async def metadata(self) -> dict[str, Any]:
        """Dynamic metadata of the next access log entry, by namespace."""
        common = (await self.entry()).common_properties
        assert common is not None
        assert common.metadata is not None
        return {name: plain(struct) for name, struct in common.metadata.filter_metadata.items()}


def plain(struct: Struct) -> dict[str, Any]:
    """A Struct as plain data."""
    fields: dict[str, Any] = struct.to_dict()
    return fields


@contextlib.asynccontextmanager
async def running(
    engines: int = 1, processors_and: tuple[str, ...] = (), host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[Gateway]:
    """A gateway whose picker names the first engine; `processors_and` are further processors, `host` names engines."""
    picker, pool = Picker(), [Engine() for _ in range(engines)]
    for server in (picker, *pool):
        await server.start()
    picker.script = pick(pool[0].address)
    defaults = {
        "envoy_version": found_version(),
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "processors": (picker.address, *processors_and),
        "endpoints": tuple(engine.address.replace("127.0.0.1", host) for engine in pool),
        "log_flush": 0.05,
        "retries": 2,
    }
    if "endpoints_file" in options:
        del defaults["endpoints"]
    config = to_yaml(EnvoyOptions(**(defaults | options)))
    try:
        async with EnvoyProcess(config, find_envoy(), concurrency=1) as envoy:
            gateway = Gateway(envoy, f"http://127.0.0.1:{await envoy.port()}", picker, pool)
            try:
                yield gateway
            finally:
                await gateway.session.close()
    finally:
        for server in (picker, *pool):
            await server.stop()
