"""The gRPC server: methods, health, reflection, TCP and Unix sockets, graceful stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from ext_proc.wire.grpc_aio import OPTIONS, handlers
from ext_proc.wire.transport import Method

READINESS_NAMES = ("", "readiness", EXT_PROC_SERVICE)
LIVENESS_NAMES = ("liveness",)
"""Names of the Endpoint Picker protocol: liveness serves while the process runs, the others while it is ready."""

_STATUS = health_pb2.HealthCheckResponse.ServingStatus


class GrpcServer:
    """Serves methods on any number of addresses.

    Args:
        methods: what it serves.
        addresses: `ip:port` (port 0 takes a free one) or `unix:/path`.
    """

    def __init__(self, methods: Iterable[Method], addresses: Sequence[str]) -> None:
        self.addresses: tuple[str, ...] = ()
        self._requested = addresses
        self._methods = tuple(methods)
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()

    async def start(self) -> None:
        """Listen; liveness serves from here on, readiness waits for `set_ready`.

        Raises:
            ConfigError: an address cannot be listened on.
        """
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(tuple(handlers(self._methods)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (EXT_PROC_SERVICE, ACCESS_LOG_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.addresses = tuple(self._listen(address) for address in self._requested)
        await self._server.start()
        for name in LIVENESS_NAMES:
            await self._health.set(name, _STATUS.SERVING)
        await self.set_ready(ready=False)

    async def set_ready(self, *, ready: bool) -> None:
        """Tell those who ask whether requests may be sent here."""
        for name in READINESS_NAMES:
            await self._health.set(name, _STATUS.SERVING if ready else _STATUS.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Take no further streams and let running ones end, for `grace` seconds at most."""
        if self._server is not None:
            await self._server.stop(grace)
        for address in self.addresses:
            _remove_socket(address)

    def _listen(self, address: str) -> str:
        assert self._server is not None  # noqa: S101  start() made it
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: is it in use?", path="listen") from error
        if address.startswith("unix:"):
            return address
        return f"{address.rpartition(':')[0]}:{port}"


def _remove_socket(address: str) -> None:
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)
