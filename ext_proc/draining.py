"""Carries an operator's word to the endpoints it means, tells Envoy and the log, and waits for drains to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from ext_proc.config import Config
from ext_proc.core import addresses
from ext_proc.core.health import HealthMonitor
from ext_proc.core.lifecycle import Lifecycle, Mark, Stage
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.core.sleepers import Sleep, Sleepers
from ext_proc.ops.collector import EndpointStatus
from ext_proc.ops.events import Event
from ext_proc.remembering import Remembering

TICK_S = 0.05
"""How long after the end of the last request a waiting drain ends, at most."""


class Parts(Protocol):
    """The parts of the decision that have to do with where endpoints stand."""

    @property
    def registry(self) -> Registry:
        """The endpoints."""

    @property
    def lifecycle(self) -> Lifecycle:
        """Where they stand by an operator's word."""

    @property
    def health(self) -> HealthMonitor:
        """Their states of health."""

    @property
    def sleepers(self) -> Sleepers:
        """Whose engines sleep."""


class Draining:
    """Cordons, drains and takes back by address, or by the host name that an address was found by.

    Attributes:
        memory: has orders outlive a restart.

    Args:
        parts: of the decision.
        config: says where orders are kept.
        changed: told after each change, so that Envoy learns of it.
        say: writes a log event with its fields.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        parts: Parts,
        config: Config,
        changed: Callable[[], None],
        say: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory = Remembering(parts.lifecycle, config, say, clock)
        self._lifecycle = parts.lifecycle
        self._registry = parts.registry
        self._health = parts.health
        self._sleepers = parts.sleepers
        self._changed = changed
        self._say = say
        self._clock = clock

    def cordon(self, name: str) -> Sequence[Mark]:
        """Let endpoints take no new request; none if there is no such endpoint."""
        return self._order(name, self._lifecycle.cordon)

    def undrain(self, name: str) -> Sequence[Mark]:
        """Let endpoints take requests again; none if there is no such endpoint."""
        return self._order(name, self._lifecycle.undrain)

    def drain(self, name: str, seconds: float) -> Sequence[Mark]:
        """Drain endpoints, or wait for what still runs at one that is not listed any more; none if nothing does."""
        now = self._clock()
        marks = self._order(name, lambda endpoint: self._lifecycle.drain(endpoint, now, seconds))
        if not marks:
            marks = self._gone(name)
            for mark in marks:
                self._lifecycle.drain_gone(mark, now, seconds)
        self.advance()
        return marks

    def find(self, name: str) -> Sequence[Mark]:
        """Return where endpoints stand, or what still runs at one that is not listed any more."""
        found = _meant(self._registry.snapshot.endpoints, name)
        return [self._lifecycle.mark(endpoint) for endpoint in found] or self._gone(name)

    async def wait(self, marks: Sequence[Mark], seconds: float) -> None:
        """Wait until none of them is draining any more, or until the time is over."""
        until = self._clock() + seconds
        while any(mark.stage is Stage.DRAINING for mark in marks) and self._clock() < until:
            await asyncio.sleep(TICK_S)
            self.advance()

    def advance(self) -> None:
        """End the drains that are over, and write down what changed by itself."""
        for mark in self._lifecycle.advance(self._clock()):
            self._tell(mark, Stage.DRAINING)
        for mark, before in self._lifecycle.mistaken():
            self._tell(mark, before)
        self.memory.save()

    @property
    def outlives_restart(self) -> bool:
        """Whether an order holds after a restart as well."""
        return self.memory.keeps

    def remaining(self, mark: Mark) -> float | None:
        """Return the seconds until the deadline; None without one."""
        return None if mark.deadline is None else max(mark.deadline - self._clock(), 0.0)

    def sleep_of(self, mark: Mark) -> Sleep | None:
        """Return how the engine of an endpoint sleeps; None if it is awake, or not listed any more."""
        return None if mark.removed else self._sleepers.of(mark.endpoint.slot)

    def completed(self, status: EndpointStatus) -> EndpointStatus:
        """Add to the status of an endpoint where it stands."""
        mark = self._lifecycle.mark(status.endpoint)
        return msgspec.structs.replace(status, lifecycle=mark.stage, drain_deadline=self.remaining(mark))

    def listed(self) -> Sequence[tuple[Mark, str]]:
        """Return where each endpoint stands, with its state of health; also those gone where requests still run."""
        present = [
            (self._lifecycle.mark(endpoint), self._health.state(endpoint.slot))
            for endpoint in self._registry.snapshot.endpoints
        ]
        return [*present, *((mark, "removed") for mark in self._lifecycle.gone)]

    def _gone(self, name: str) -> list[Mark]:
        gone = {mark.endpoint.generation: mark for mark in self._lifecycle.gone}
        return [gone[each.generation] for each in _meant((mark.endpoint for mark in gone.values()), name)]

    def _order(self, name: str, order: Callable[[Endpoint], Mark]) -> list[Mark]:
        marks = []
        for endpoint in _meant(self._registry.snapshot.endpoints, name):
            before = self._lifecycle.stage(endpoint.slot)
            mark = order(endpoint)
            marks.append(mark)
            if mark.stage is not before:
                self._tell(mark, before)
        if marks:
            self._changed()
            self.memory.save()
        return marks

    def _tell(self, mark: Mark, before: Stage) -> None:
        remaining = self.remaining(mark)
        self._say(
            Event.LIFECYCLE_CHANGED,
            endpoint=mark.endpoint.address,
            pool=mark.endpoint.pool,
            state=mark.stage.value,
            before=before.value,
            running=mark.running,
            deadline_s=None if remaining is None else round(remaining, 3),
            removed=mark.removed,
        )


def _meant(endpoints: Iterable[Endpoint], name: str) -> list[Endpoint]:
    """Find the endpoints of an address or host name in whatever notation."""
    try:
        wanted = addresses.named(name)
    except ValueError:
        return []
    return [endpoint for endpoint in endpoints if wanted in (endpoint.address, endpoint.name)]
