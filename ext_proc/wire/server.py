"""The gRPC server: methods, health, reflection, TCP and Unix sockets, TLS, graceful stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.wire.choice import another, choose
from ext_proc.wire.health import Health
from ext_proc.wire.obstacles import obstacle
from ext_proc.wire.reflection import reflection_method
from ext_proc.wire.tls import ServerTls
from ext_proc.wire.transport import Method, Transport

READINESS_NAMES = ("", "readiness", EXT_PROC_SERVICE, "inference-extension")
LIVENESS_NAMES = ("liveness",)
"""Names of the Endpoint Picker protocol: liveness serves while the process runs, the others while it is ready.

The last one is no part of it, but what the charts of gateways probe where there is one picker.
"""


class Doors(NamedTuple):
    """Where a server is to be reached; each address `ip:port` (port 0 takes a free one) or `unix:/path`.

    Attributes:
        main: addresses of all methods; `ip:port` are encrypted if `tls` is given.
        tls: what they are encrypted with; None encrypts nothing.
        plain: addresses of all methods that are not encrypted in any case.
        health: addresses of the health service alone, not encrypted either.
    """

    main: Sequence[str]
    tls: ServerTls | None = None
    plain: Sequence[str] = ()
    health: Sequence[str] = ()


class GrpcServer:
    """Serves methods on any number of addresses.

    Args:
        methods: what it serves.
        doors: where.
        transport: `queue`, `aio` or `auto`, which takes the first that works.

    Attributes:
        addresses: where it serves the methods, once started.
        plain_addresses: where it does so without encryption though others are encrypted, once started.
        health_addresses: where it serves health alone, once started.
        transport: name of the transport in use, once started.
        transport_reason: why that is not the one that `auto` prefers; empty if it is.
    """

    def __init__(self, methods: Iterable[Method], doors: Doors | Sequence[str], transport: str = "auto") -> None:
        self.addresses: tuple[str, ...] = ()
        self.plain_addresses: tuple[str, ...] = ()
        self.health_addresses: tuple[str, ...] = ()
        self.transport = transport
        self.transport_reason = ""
        self._doors = doors if isinstance(doors, Doors) else Doors(doors)
        self._health = Health()
        served = (*methods, self._health.method())
        self._methods = (*served, reflection_method(method.service for method in served))
        self._transports: list[Transport] = []

    async def start(self) -> None:
        """Listen; liveness serves from here on, readiness waits for `set_ready`.

        Raises:
            ConfigError: an address cannot be listened on, or the transport cannot be used.
        """
        for name in LIVENESS_NAMES:
            self._health.set(name, serving=True)
        await self.set_ready(ready=False)
        doors = self._doors
        chosen = await choose(self.transport, self._methods)
        transport = chosen.transport
        self.addresses = tuple(_listen(transport, address, "listen", doors.tls) for address in doors.main)
        self.plain_addresses = tuple(_listen(transport, address, "tls.plaintext") for address in doors.plain)
        await self._run(transport)
        self.transport = transport.name
        self.transport_reason = chosen.reason
        if doors.health:
            beside = another(transport, (self._health.method(),))
            self.health_addresses = tuple(_listen(beside, address, "health_listen") for address in doors.health)
            await self._run(beside)

    async def _run(self, transport: Transport) -> None:
        await transport.start()
        self._transports.append(transport)

    @property
    def description(self) -> dict[str, Any]:
        """What is in use that the addresses do not say; as fields of a log line."""
        told: dict[str, Any] = {"transport": self.transport}
        if self.transport_reason:
            told["transport_reason"] = self.transport_reason
        if self._doors.tls is not None:
            told["tls"] = True
        if self.plain_addresses:
            told["plaintext"] = self.plain_addresses
        if self.health_addresses:
            told["health"] = self.health_addresses
        return told

    async def set_ready(self, *, ready: bool) -> None:
        """Tell those who ask whether requests may be sent here."""
        for name in READINESS_NAMES:
            self._health.set(name, serving=ready)

    async def stop(self, grace: float) -> None:
        """Take no further streams and let running ones end, for `grace` seconds at most; health goes last."""
        for transport in self._transports:
            await transport.stop(grace)
        for address in (*self.addresses, *self.plain_addresses, *self.health_addresses):
            _remove_socket(address)


def _listen(transport: Transport, address: str, field: str, tls: ServerTls | None = None) -> str:
    is_socket = address.startswith("unix:")
    port = transport.listen(address, None if tls is None or is_socket else tls.credentials())
    if not port:
        raise ConfigError(f"cannot listen on {address}: {obstacle(address)}", path=field)
    if is_socket:
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _remove_socket(address: str) -> None:
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)
