"""How the target is reached."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from typing import Any, Final, Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from ext_proc.conformance.stream import Stream

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

_SETTINGS: Final = b"\x04"
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + _SETTINGS + b"\x00" * 5
"""A client's preface and an empty SETTINGS frame; a server's first frame is of that type, by its fourth byte too."""

_ANSWER_S: Final = 1.0
_NO_TLS: Final = "what listens there speaks no TLS; leave --tls out"


class Unreachable(Exception):
    """The target does not answer at all; the message says what was tried."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """Where a gRPC server is, and how one speaks to it.

    Attributes:
        where: `host:port` or `unix:/path`.
        tls: whether it speaks TLS.
        authority: certificates that may have signed the server's, PEM; None takes those of the system.
        own: key and certificate of ours, PEM, for a server that asks for one (mutual TLS).
        insecure: whether the server's own certificate is trusted as it is.
        server_name: name that the certificate must have, where that is not the host.
    """

    where: str
    tls: bool = False
    authority: bytes | None = None
    own: tuple[bytes, bytes] | None = None
    insecure: bool = False
    server_name: str = ""

    async def channel(self) -> grpc.aio.Channel:
        """Open a connection.

        Raises:
            Unreachable: the certificate of the server cannot be fetched.
        """
        if not self.tls:
            return grpc.aio.insecure_channel(self.where, options=_OPTIONS)
        options: tuple[tuple[str, Any], ...] = _OPTIONS
        authority, name = self.authority, self.server_name
        if self.insecure:
            authority, found = await self._offered()
            name = name or found
        if name:
            options = (*options, ("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(
            self.where, grpc.ssl_channel_credentials(authority, *(self.own or ())), options=options
        )

    async def _offered(self) -> tuple[bytes, str]:
        """Fetch the certificate that the server offers, to trust just that one."""
        host, _, port = self.where.rpartition(":")
        try:
            return await asyncio.to_thread(_offered, (host.strip("[]"), int(port)))
        except (OSError, ValueError) as error:
            why = _NO_TLS if getattr(error, "reason", "") == "WRONG_VERSION_NUMBER" else error
            raise Unreachable(f"no certificate from {self.where}: {why}") from None


def _offered(where: tuple[str, int]) -> tuple[bytes, str]:
    """Return a server's certificate, PEM, and a name that it is valid for; that empty if there is none.

    Raises:
        OSError: there is no TLS server.
    """
    text = ssl.get_server_certificate(where, timeout=5)
    context = ssl.create_default_context(cadata=text)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # The standard library takes a certificate apart only once it is trusted.
    with socket.create_connection(where, timeout=5) as plain, context.wrap_socket(plain) as connection:
        certificate: dict[str, Any] = connection.getpeercert() or {}
    subject = [pair for parts in certificate.get("subject", ()) for pair in parts if pair[0] == "commonName"]
    names = [*certificate.get("subjectAltName", ()), *subject]
    return text.encode(), next((str(name) for _, name in names), "")


def _knock(where: str) -> bytes:
    """Say hello in HTTP/2 and return how the answer begins; empty if there is none.

    Raises:
        OSError: nobody listens.
        ValueError: there is no port in the address.
    """
    with _connected(where) as connection:
        try:
            connection.sendall(_HELLO)
            connection.settimeout(_ANSWER_S)
            return connection.recv(16)
        except OSError:
            return b""


def _connected(where: str) -> socket.socket:
    if where.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(where.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = where.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5)


class Target:
    """The picker under test, over connections that are opened when they are first used.

    Args:
        address: where it serves ext_proc.
        health: where it serves health checks.
        patience_s: seconds that an answer may take.
    """

    def __init__(self, address: Address, health: Address, patience_s: float) -> None:
        self._address = address
        self._health = health
        self._patience_s = patience_s
        self._channels: dict[Address, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        for address in {self._address, self._health}:
            self._channels[address] = await address.channel()
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def reach(self) -> None:
        """Wait until the target takes connections.

        Raises:
            Unreachable: it does not within the patience.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._channels[self._address].channel_ready()
        except TimeoutError:
            way = "TLS" if self._address.tls else "plaintext"
            raise Unreachable(
                f"no connection to {self._address.where} ({way}) in {self._patience_s:g} s; {await self._advice()}"
            ) from None

    async def _advice(self) -> str:
        """Say why there is no connection, as far as a plain one can tell."""
        try:
            answer = await asyncio.to_thread(_knock, self._address.where)
        except (OSError, ValueError) as error:
            return f"nobody listens there: {error}"
        if answer.startswith(b"HTTP/1"):
            return "an HTTP/1.1 server listens there, and no gRPC server: is it the port of metrics, or an engine?"
        if not self._address.tls:
            return "somebody listens there: if it is gRPC with TLS, add --tls"
        if answer[3:4] == _SETTINGS:
            return _NO_TLS
        return (
            "somebody listens there: if its certificate is not trusted, add --ca FILE or --insecure; if it is for"
            " another name, --server-name NAME; if it asks for one of yours, --client FOLDER"
        )

    def stream(self) -> Stream:
        """Begin an ext_proc stream."""
        return Stream(self._channels[self._address], self._patience_s)

    async def health(self, service: str) -> str:
        """Ask for the health of a service: a serving status, or else the gRPC status code, by name."""
        ask = self._channels[self._health].unary_unary(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await ask(health_pb2.HealthCheckRequest(service=service), timeout=self._patience_s)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
