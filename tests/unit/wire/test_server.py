"""The gRPC server over real sockets, with real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from ext_proc.wire import access_log, ext_proc
from ext_proc.wire._pb.access_log_pb2 import StreamAccessLogsResponse
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingResponse
from ext_proc.wire.codec import Encoder
from ext_proc.wire.server import LIVENESS_NAMES, READINESS_NAMES, GrpcServer
from ext_proc.wire.transport import Reply
from tests.unit.wire.picking import Picking, body_message, headers_message
from tests.unit.wire.serving import TRANSPORTS, Tally, begin, converse
from tests.waiting import until

PROCESS = f"/{EXT_PROC_SERVICE}/Process"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Name a transport; every test runs on each."""
    return str(request.param)


def make(picking: Picking, transport: str, *addresses: str) -> GrpcServer:
    """Make a server of both methods."""
    methods = (
        ext_proc.ext_proc_method(picking.exchange, Encoder(1), picking.notes),
        access_log.access_log_method(picking.core.feedback, lambda: picking.now, lambda _: None),
    )
    return GrpcServer(methods, addresses or ("127.0.0.1:0",), transport)


@pytest.fixture
async def server(picking: Picking, transport: str) -> AsyncIterator[GrpcServer]:
    """Run a server."""
    running = make(picking, transport)
    await running.start()
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to the server."""
    async with grpc.aio.insecure_channel(server.addresses[0]) as connected:
        yield connected


async def test_stream_is_answered_and_finished(channel: grpc.aio.Channel, picking: Picking) -> None:
    """Headers and body get one answer each, and the server ends the stream with OK."""
    answers = await converse(channel, headers_message(), body_message(), method=PROCESS)
    kinds = [ProcessingResponse.FromString(answer).WhichOneof("response") for answer in answers]
    assert kinds == ["request_headers", "request_body"]
    assert picking.in_flight() == 1


async def test_unsupported_mode_is_a_status(channel: grpc.aio.Channel) -> None:
    """A stream in a mode that is not served ends with UNIMPLEMENTED and a text that says what to set."""
    from ext_proc.core.exchange_messages import BodyMode  # noqa: PLC0415

    call = begin(channel, PROCESS)
    await call.write(headers_message(mode=BodyMode.GRPC))
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "BUFFERED_PARTIAL" in await call.details()


async def test_cancelled_stream_frees_everything(channel: grpc.aio.Channel, picking: Picking) -> None:
    """A stream that is reset after the headers leaves no lease (G06)."""
    for _ in range(20):
        call = channel.stream_stream(PROCESS)()
        await call.write(headers_message())
        await call.read()
        call.cancel()
    await converse(channel, headers_message(end=True), method=PROCESS)
    assert len(picking.core.ledger) == 1


async def test_large_body_passes(channel: grpc.aio.Channel) -> None:
    """A body far over the library's default limit of 4 MiB is read."""
    body = b'{"model":"acme/chat-8b","messages":[{"role":"user","content":"' + b"x" * 9_000_000 + b'"}]}'
    assert len(await converse(channel, headers_message(), body_message(body), method=PROCESS)) == 2


async def test_access_log_is_answered_once_at_the_end(channel: grpc.aio.Channel) -> None:
    """The log stream gets its one answer when Envoy half-closes."""
    method = f"/{ACCESS_LOG_SERVICE}/StreamAccessLogs"
    assert await converse(channel, b"", b"", method=method) == [StreamAccessLogsResponse().SerializeToString()]


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "not ready"])
async def test_health_names_of_the_protocol(server: GrpcServer, channel: grpc.aio.Channel, ready: bool) -> None:
    """Liveness serves all the time, the other names while the server is ready."""
    await server.set_ready(ready=ready)
    stub = health_pb2_grpc.HealthStub(channel)
    for name in (*LIVENESS_NAMES, *READINESS_NAMES):
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == (SERVING if ready or name in LIVENESS_NAMES else NOT_SERVING), name


async def test_reflection_lists_both_services(channel: grpc.aio.Channel) -> None:
    """Tools can ask which services there are."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    reply = await call.read()
    call.cancel()
    names = {service.name for service in reply.list_services_response.service}
    assert {EXT_PROC_SERVICE, ACCESS_LOG_SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"], ids=["IPv4", "IPv6"])
async def test_free_port_is_taken_and_told(picking: Picking, transport: str, host: str) -> None:
    """Port 0 becomes a real one, on either kind of address."""
    running = make(picking, transport, f"{host}:0")
    await running.start()
    (address,) = running.addresses
    assert address.startswith(f"{host}:")
    async with grpc.aio.insecure_channel(address) as channel:
        assert len(await converse(channel, headers_message(), body_message(), method=PROCESS)) == 2
    await running.stop(0)


async def test_unix_socket_serves_and_is_removed(picking: Picking, transport: str, tmp_path: Path) -> None:
    """A server on a Unix socket answers there and takes the socket away when it stops."""
    socket = tmp_path / "picker.sock"
    running = make(picking, transport, f"unix:{socket}")
    await running.start()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        assert len(await converse(channel, headers_message(), body_message(), method=PROCESS)) == 2
    await running.stop(0)
    assert not socket.exists()


async def test_busy_port_is_a_clear_error(server: GrpcServer, transport: str, picking: Picking) -> None:
    """A second server on the port says so."""
    with pytest.raises(ConfigError, match="in use"):
        await make(picking, transport, server.addresses[0]).start()


async def test_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    """What is not served says so, with a message sent or without."""
    assert await begin(channel, "/kvpicker.test/Nothing").code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary("/kvpicker.test/Nothing")(b"x")
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_stop_lets_running_streams_end(picking: Picking, transport: str) -> None:
    """A stream that began before the stop is still answered."""
    running = make(picking, transport)
    await running.start()
    async with grpc.aio.insecure_channel(running.addresses[0]) as channel:
        call = begin(channel, PROCESS)
        await call.write(headers_message())
        await call.read()
        stopping = asyncio.create_task(running.stop(10))
        await call.write(body_message())
        assert ProcessingResponse.FromString(await call.read()).HasField("request_body")
        await asyncio.wait_for(stopping, 5)


async def test_stop_cuts_streams_that_go_on(transport: str) -> None:
    """Streams that outlive the grace are closed, those that wait for their answer too, and peers notice."""
    tally = Tally(lambda message: Reply(message) if message == b"now" else asyncio.sleep(60, Reply()))
    running = GrpcServer([tally.method()], ["127.0.0.1:0"], transport)
    await running.start()
    async with grpc.aio.insecure_channel(running.addresses[0]) as channel:
        calls = [begin(channel) for _ in range(40)]
        for number, call in enumerate(calls):
            await call.write(b"now" if number % 2 else b"later")
        await until(lambda: len(tally.heard) == 40)
        await asyncio.gather(*(call.read() for call in calls[1::2]))
        await asyncio.wait_for(running.stop(0.1), 5)
        assert (tally.running, tally.opened) == (0, 40)
        assert grpc.StatusCode.OK not in [await call.code() for call in calls]


async def test_stop_twice_is_stop_once(picking: Picking, transport: str) -> None:
    """A server may be told to stop again, before it has ended and after."""
    running = make(picking, transport)
    await running.start()
    await asyncio.gather(running.stop(1), running.stop(0))
    await running.stop(0)


async def test_server_that_never_started_can_be_stopped(picking: Picking, transport: str) -> None:
    """The end of a failed start is no second failure."""
    await make(picking, transport).stop(0)
