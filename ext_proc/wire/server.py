"""The gRPC server: methods, health, reflection, TCP and Unix sockets, graceful stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.wire.choice import choose
from ext_proc.wire.health import Health
from ext_proc.wire.reflection import reflection_method
from ext_proc.wire.transport import Method, Transport

READINESS_NAMES = ("", "readiness", EXT_PROC_SERVICE)
LIVENESS_NAMES = ("liveness",)
"""Names of the Endpoint Picker protocol: liveness serves while the process runs, the others while it is ready."""


class GrpcServer:
    """Serves methods on any number of addresses.

    Args:
        methods: what it serves.
        addresses: `ip:port` (port 0 takes a free one) or `unix:/path`.
        transport: `queue`, `aio` or `auto`, which takes the first that works.

    Attributes:
        addresses: where it listens, once started.
        transport: name of the transport in use, once started.
        transport_reason: why that is not the one that `auto` prefers; empty if it is.
    """

    def __init__(self, methods: Iterable[Method], addresses: Sequence[str], transport: str = "auto") -> None:
        self.addresses: tuple[str, ...] = ()
        self.transport = transport
        self.transport_reason = ""
        self._requested = addresses
        self._health = Health()
        served = (*methods, self._health.method())
        self._methods = (*served, reflection_method(method.service for method in served))
        self._transport: Transport | None = None

    async def start(self) -> None:
        """Listen; liveness serves from here on, readiness waits for `set_ready`.

        Raises:
            ConfigError: an address cannot be listened on, or the transport cannot be used.
        """
        for name in LIVENESS_NAMES:
            self._health.set(name, serving=True)
        await self.set_ready(ready=False)
        chosen = await choose(self.transport, self._methods)
        transport = chosen.transport
        self.addresses = tuple(_listen(transport, address) for address in self._requested)
        await transport.start()
        self._transport = transport
        self.transport = transport.name
        self.transport_reason = chosen.reason

    @property
    def description(self) -> dict[str, str]:
        """The transport in use and, where it is only the second choice, the reason; as fields of a log line."""
        reason = {"transport_reason": self.transport_reason} if self.transport_reason else {}
        return {"transport": self.transport, **reason}

    async def set_ready(self, *, ready: bool) -> None:
        """Tell those who ask whether requests may be sent here."""
        for name in READINESS_NAMES:
            self._health.set(name, serving=ready)

    async def stop(self, grace: float) -> None:
        """Take no further streams and let running ones end, for `grace` seconds at most."""
        if self._transport is not None:
            await self._transport.stop(grace)
        for address in self.addresses:
            _remove_socket(address)


def _listen(transport: Transport, address: str) -> str:
    port = transport.listen(address)
    if not port:
        raise ConfigError(f"cannot listen on {address}: is it in use?", path="listen")
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _remove_socket(address: str) -> None:
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)
