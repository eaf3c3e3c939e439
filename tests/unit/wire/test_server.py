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
from ext_proc.wire.transport import Method, Reply
from tests.unit.wire.picking import Picking, body_message, headers_message

PROCESS = f"/{EXT_PROC_SERVICE}/Process"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def make(picking: Picking, *addresses: str) -> GrpcServer:
    """Make a server of both methods."""
    methods = (
        ext_proc.ext_proc_method(picking.exchange, Encoder(1), picking.notes),
        access_log.access_log_method(picking.core.feedback, lambda: picking.now, lambda _: None),
    )
    return GrpcServer(methods, addresses or ("127.0.0.1:0",))


@pytest.fixture
async def server(picking: Picking) -> AsyncIterator[GrpcServer]:
    """Run a server."""
    running = make(picking)
    await running.start()
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to the server."""
    async with grpc.aio.insecure_channel(server.addresses[0]) as connected:
        yield connected


async def converse(channel: grpc.aio.Channel, *messages: bytes, method: str = PROCESS) -> list[bytes]:
    """Send messages on one stream, half-close and return all answers."""
    call = channel.stream_stream(method)()
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [answer async for answer in call]


async def test_stream_is_answered_and_finished(channel: grpc.aio.Channel, picking: Picking) -> None:
    """Headers and body get one answer each, and the server ends the stream with OK."""
    answers = await converse(channel, headers_message(), body_message())
    kinds = [ProcessingResponse.FromString(answer).WhichOneof("response") for answer in answers]
    assert kinds == ["request_headers", "request_body"]
    assert picking.in_flight() == 1


async def test_unsupported_mode_is_a_status(channel: grpc.aio.Channel) -> None:
    """A stream in a mode that is not served ends with UNIMPLEMENTED and a text that says what to set."""
    from ext_proc.core.exchange import BodyMode  # noqa: PLC0415

    with pytest.raises(grpc.aio.AioRpcError, match="BUFFERED_PARTIAL") as error:
        await converse(channel, headers_message(mode=BodyMode.FULL_DUPLEX_STREAMED))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_cancelled_stream_frees_everything(channel: grpc.aio.Channel, picking: Picking) -> None:
    """A stream that is reset after the headers leaves no lease (G06)."""
    for _ in range(20):
        call = channel.stream_stream(PROCESS)()
        await call.write(headers_message())
        await call.read()
        call.cancel()
    await converse(channel, headers_message(end=True))
    assert len(picking.core.ledger) == 1


async def test_large_body_passes(channel: grpc.aio.Channel) -> None:
    """A body far over the library's default limit of 4 MiB is read."""
    body = b'{"model":"acme/chat-8b","messages":[{"role":"user","content":"' + b"x" * 9_000_000 + b'"}]}'
    assert len(await converse(channel, headers_message(), body_message(body))) == 2


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


async def test_unix_socket_serves_and_is_removed(picking: Picking, tmp_path: Path) -> None:
    """A server on a Unix socket answers there and takes the socket away when it stops."""
    socket = tmp_path / "picker.sock"
    running = make(picking, f"unix:{socket}")
    await running.start()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        assert len(await converse(channel, headers_message(), body_message())) == 2
    await running.stop(0)
    assert not socket.exists()


async def test_busy_port_is_a_clear_error(server: GrpcServer, picking: Picking) -> None:
    """A second server on the port says so."""
    with pytest.raises(ConfigError, match="in use"):
        await make(picking, server.addresses[0]).start()


async def test_stop_lets_running_streams_end(picking: Picking) -> None:
    """A stream that began before the stop is still answered."""
    running = make(picking)
    await running.start()
    async with grpc.aio.insecure_channel(running.addresses[0]) as channel:
        call = channel.stream_stream(PROCESS)()
        await call.write(headers_message())
        await call.read()
        stopping = asyncio.create_task(running.stop(10))
        await call.write(body_message())
        assert ProcessingResponse.FromString(await call.read()).HasField("request_body")
        await stopping


class Waits:
    """A session whose answer must wait."""

    async def _answer(self) -> Reply:
        await asyncio.sleep(0)
        return Reply(b"late", finished=True)

    def receive(self, _message: bytes) -> object:
        """Return an awaitable."""
        return self._answer()

    def close(self, *, delivered: bool) -> Reply:
        """End."""
        assert delivered
        return Reply()


async def test_transport_awaits_an_answer_that_must_wait() -> None:
    """A session may answer later; the transport waits for it."""
    server = GrpcServer([Method("kvpicker.test", "Wait", Waits)], ["127.0.0.1:0"])
    await server.start()
    async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
        assert await converse(channel, b"x", method="/kvpicker.test/Wait") == [b"late"]
    await server.stop(0)
