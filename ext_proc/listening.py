"""Carries what comes of listening to KV events to where it belongs, and says what is missing for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ext_proc.config import Config
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.ops.collector import EndpointStatus
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics
from ext_proc.sources.kv_publishers import check_installed, is_installed

if TYPE_CHECKING:
    from ext_proc.sources.kv_events import KvEventListener


class Listening:
    """Listening to KV events, where the package for it is installed; elsewhere nothing.

    Args:
        config: what to listen to.
        registry: which endpoints there are.
        ledger: which of them are at work.
        resident: who is told.
        metrics: counts.
        say: writes a log event with its fields.

    Raises:
        ConfigError: the package is missing, and something is to be listened to.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        ledger: Ledger,
        resident: ResidentIndex,
        metrics: Metrics,
        say: Callable[..., None],
    ) -> None:
        check_installed(config)
        self._resident = resident
        self._say = say
        self._listener: KvEventListener | None = None
        if is_installed():
            from ext_proc.sources.kv_events import KvEventListener  # noqa: PLC0415  an optional package

            self._listener = KvEventListener(
                config,
                registry=registry,
                resident=resident,
                is_busy=lambda slot: ledger.load(slot).in_flight > 0,
                listener=metrics,
                changed=self._changed,
            )

    def configure(self, config: Config) -> None:
        """Go by another configuration, one that was checked."""
        if self._listener is not None:
            self._listener.configure(config)

    async def run(self) -> None:
        """Listen until cancelled."""
        if self._listener is not None:
            await self._listener.run()

    @property
    def is_degraded(self) -> bool:
        """Whether some engine's events cannot be gone by."""
        return self._listener is not None and self._listener.is_degraded

    def completed(self, status: EndpointStatus) -> EndpointStatus:
        """Add to the status of an endpoint how listening to it goes."""
        if self._listener is None:
            return status
        endpoint, now = status.endpoint, time.monotonic()
        return msgspec.structs.replace(
            status,
            kv_silence=self._listener.silence(endpoint, now),
            kv_blocks=self._resident.blocks(endpoint.slot),
            publishers=self._listener.states(endpoint, now),
        )

    def _changed(self, endpoint: Endpoint, problem: str) -> None:
        if problem:
            self._say(Event.SOURCE_FAILED, source="kv_events", endpoint=endpoint.address, reason=problem)
        else:
            self._say(Event.SOURCE_RECOVERED, source="kv_events", endpoint=endpoint.address)
