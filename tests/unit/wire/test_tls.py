"""Encryption of the gRPC server on both transports, with real handshakes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.wire.server import LIVENESS_NAMES, READINESS_NAMES, Doors, GrpcServer
from ext_proc.wire.tls import ServerTls
from ext_proc.wire.transport import Reply
from tests.certificates import Authority, Pair, presented
from tests.unit.wire.serving import TRANSPORTS, Tally, begin

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ANY = "127.0.0.1:0"


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Name a transport; every test runs on each."""
    return str(request.param)


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Make the authority that all trust."""
    return Authority()


def tls_of(pair: Pair, client_ca: bytes | None = None) -> ServerTls:
    """Make the server's side."""
    return ServerTls(pair.key, pair.certificate, client_ca)


@asynccontextmanager
async def running(transport: str, doors: Doors) -> AsyncIterator[GrpcServer]:
    """Run a server that says back what it hears."""
    server = GrpcServer([Tally(Reply).method()], doors, transport)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(address: str, authority: Authority, client: Pair | None = None) -> AsyncIterator[Any]:
    """Connect as a client that verifies, with a certificate of its own or without."""
    key, chain = (client.key, client.certificate) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.certificate, key, chain)
    own_pool = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(address, credentials, own_pool) as channel:
        yield channel


async def talks(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Have a conversation of nothing and return how it ended."""
    call = begin(channel, timeout=10)
    with contextlib.suppress(grpc.aio.BaseError, grpc.aio.AioRpcError):
        await call.done_writing()
        await call.read()
    code: grpc.StatusCode = await call.code()
    return code


async def test_a_client_that_verifies_is_served(transport: str, authority: Authority) -> None:
    """The certificate is presented, and who trusts its authority talks."""
    doors = Doors([ANY], tls_of(authority.issue("first")))
    async with running(transport, doors) as server, connected(server.addresses[0], authority) as channel:
        assert await talks(channel) is grpc.StatusCode.OK
        assert server.description == {"transport": transport, "tls": True}


async def test_a_client_of_another_authority_is_not(transport: str, authority: Authority) -> None:
    """Who does not trust the certificate notices."""
    doors = Doors([ANY], tls_of(authority.issue("first")))
    async with running(transport, doors) as server, connected(server.addresses[0], Authority("other")) as channel:
        assert await talks(channel) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("known", [True, False, None], ids=["known", "strange", "none"])
async def test_clients_prove_themselves(transport: str, authority: Authority, *, known: bool | None) -> None:
    """With an authority for clients, only those with a certificate of it are let in."""
    doors = Doors([ANY], tls_of(authority.issue("first"), authority.certificate))
    client = None if known is None else (authority if known else Authority("strange")).issue("client")
    expected = grpc.StatusCode.OK if known else grpc.StatusCode.UNAVAILABLE
    async with running(transport, doors) as server, connected(server.addresses[0], authority, client) as channel:
        assert await talks(channel) is expected


async def test_a_change_reaches_new_connections_only(transport: str, authority: Authority) -> None:
    """A stream that is open goes on over its old connection; every address presents the new certificate."""
    tls = tls_of(authority.issue("first"))
    doors = Doors([ANY, ANY], tls)
    async with running(transport, doors) as server, connected(server.addresses[0], authority) as channel:
        call = begin(channel)
        await call.write(b"before")
        assert [await presented(address) for address in server.addresses] == ["first", "first"]
        second = authority.issue("second")
        tls.replace(second.key, second.certificate)
        assert [await presented(address) for address in server.addresses] == ["second", "second"]
        assert await presented(server.addresses[0]) == "second"
        await call.write(b"after")
        await call.done_writing()
        assert [answer async for answer in call] == [b"before", b"after", b"bye"]


async def test_an_address_may_be_left_in_the_clear(transport: str, authority: Authority, tmp_path: Path) -> None:
    """Beside an encrypted address: one that is not, and a Unix socket, which never is."""
    socket = f"unix:{tmp_path}/picker.sock"
    doors = Doors([ANY, socket], tls_of(authority.issue("first")), plain=[ANY])
    async with running(transport, doors) as server:
        for address in (*server.plain_addresses, socket):
            async with grpc.aio.insecure_channel(address) as channel:
                assert await talks(channel) is grpc.StatusCode.OK
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            assert await talks(channel) is grpc.StatusCode.UNAVAILABLE
        assert server.description["plaintext"] == server.plain_addresses


async def test_health_has_an_address_of_its_own(transport: str, authority: Authority) -> None:
    """It is never encrypted, answers for every name, follows readiness, and serves nothing else."""
    doors = Doors([ANY], tls_of(authority.issue("first")), health=[ANY])
    async with running(transport, doors) as server:
        (address,) = server.health_addresses
        async with grpc.aio.insecure_channel(address) as channel:
            ask = health_pb2_grpc.HealthStub(channel).Check

            async def states() -> dict[str, int]:
                names = (*LIVENESS_NAMES, *READINESS_NAMES)
                return {n: (await ask(health_pb2.HealthCheckRequest(service=n))).status for n in names}

            assert set(READINESS_NAMES) >= {"readiness", "envoy.service.ext_proc.v3.ExternalProcessor"}
            assert await states() == {"liveness": SERVING, **dict.fromkeys(READINESS_NAMES, NOT_SERVING)}
            await server.set_ready(ready=True)
            assert set((await states()).values()) == {SERVING}
            assert await talks(channel) is grpc.StatusCode.UNIMPLEMENTED
