"""Says in the log and the metrics what becomes of endpoints, and of the files and names that list them."""

from __future__ import annotations

from collections.abc import Callable

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change, Registry
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics


class EndpointNews:
    """Hears of endpoints.

    Args:
        registry: which there are.
        metrics: counts what was read.
        say: writes a log event with its fields.
    """

    def __init__(self, registry: Registry, metrics: Metrics, say: Callable[..., None]) -> None:
        self._registry = registry
        self._metrics = metrics
        self._say = say

    def changed(self, change: Change) -> None:
        """Log a change that took effect, and count no more of whom it removed, whether or not anybody scrapes."""
        if change.removed:
            self._metrics.forget_endpoints(self._registry.snapshot.by_address.keys())
        self._say(
            Event.ENDPOINTS_CHANGED,
            added=[endpoint.address for endpoint in change.added],
            removed=[endpoint.address for endpoint in change.removed],
            updated=[endpoint.address for endpoint in change.updated],
            endpoints=len(self._registry.snapshot.endpoints),
        )

    def source_read(self, source: str, error: Exception | None) -> None:
        """Count the reading of a list, and log what is wrong with it."""
        self._metrics.config_reloaded(f"endpoints {source}", applied=error is None)
        if error is not None:
            self._say(Event.ENDPOINTS_REJECTED, source=source, error=str(error))

    def name_looked_up(self, name: str, problem: str) -> None:
        """Log that a host name cannot be looked up, or can be again."""
        if problem:
            self._say(Event.SOURCE_FAILED, source="dns", name=name, reason=problem)
        else:
            self._say(Event.SOURCE_RECOVERED, source="dns", name=name)

    def model_unknown(self, endpoint: Endpoint, reason: str, error: Exception) -> None:
        """Log that an engine does not say what it serves."""
        kind = type(error).__name__
        self._say(Event.SOURCE_FAILED, source="models", endpoint=endpoint.address, reason=reason, error=kind)
