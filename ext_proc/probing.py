"""Carries what probes, metrics and time say of endpoints to their health."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ext_proc.config import Config
from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import Verdict
from ext_proc.core.model import Endpoint
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.sleepers import Witness
from ext_proc.core.slowness import slowness
from ext_proc.ops.metrics import Metrics
from ext_proc.sleeping import Sleeping
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.probe import Prober
from ext_proc.sources.probe_ask import Finding, is_local
from ext_proc.sources.scrape import metrics_source

LIFELESS = frozenset({"timeout", "unreachable", "cut"})
"""Why metrics cannot be read where the process may hang or be gone."""

COMPARE_S = 5.0
"""Seconds between two comparisons of endpoints with their peers."""


STALL_S = 2.5
"""Seconds without a tick, of which there is one a second, that mean that this process itself stood still."""

AFTERMATH_S = 1.0
"""Seconds after that in which what was overdue by then is found to have failed."""


class Parts(Protocol):
    """The parts of the decision that have to do with health."""

    @property
    def registry(self) -> Registry:
        """The endpoints."""

    @property
    def health(self) -> HealthMonitor:
        """Their states."""

    @property
    def picker(self) -> EndpointPicker:
        """Knows how quick they are."""


class Probing:
    """Probes the endpoints, and weighs what is heard of them.

    Args:
        config: how they are probed.
        parts: of the decision.
        engine: the engine whose metrics an endpoint was seen to have; an empty name if there were none.
        metrics: counts the probes.
        keys: the API keys of the engines.
        sleeping: hears whether they sleep.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        engine: Callable[[Endpoint], str],
        metrics: Metrics,
        keys: ApiKeys,
        sleeping: Sleeping,
    ) -> None:
        self.sleeping = sleeping
        self._registry = parts.registry
        self._health = parts.health
        self._reputations = parts.picker.knowledge.reputations
        self._engine = engine
        self._metrics = metrics
        self._compared_at = self._ticked_at = self._excused_until = time.monotonic()
        self._config = config
        self._prober = Prober(
            config,
            registry=self._registry,
            state=self._health.state,
            engine=self._kind,
            listener=self,
            keys=keys,
            believed=sleeping.believed,
        )
        self.configure(config)
        self._health.doubts = self._prober.hurry

    def configure(self, config: Config) -> None:
        """Go by another configuration from now on."""
        self._config = config
        self._health.configure(config.health.policy, probing=config.health.probes.enabled)
        self._prober.configure(config)
        self.sleeping.configure(config)

    async def run(self) -> None:
        """Probe until cancelled."""
        await self._prober.run()

    def is_degraded(self, now: float) -> bool:
        """Tell whether probes cannot run, or say nothing since requests contradict them."""
        return self._prober.is_degraded(now) or self._health.trust.lost

    def probed(self, endpoint: Endpoint, finding: Finding | None) -> None:
        """Tell health, and count it."""
        self._metrics.probed("local" if finding is None else finding.verdict)
        now = time.monotonic()
        if finding is None or not self._is_current(endpoint):
            return
        if finding.asleep is not None:
            self.sleeping.told(endpoint, Witness.PROBE, asleep=finding.asleep)
        if finding.verdict is not Verdict.FAILED or not self._stood_still(now):
            self._health.probed(endpoint, finding.verdict, finding.found, now)

    def scraped(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Tell health that metrics can or cannot be read, of an engine of which they once could."""
        if not self._is_current(endpoint) or not self._engine(endpoint):
            return
        now = time.monotonic()
        is_lifeless = problem in LIFELESS and not is_local(None if error is None else error.__cause__)
        if not is_lifeless or not self._stood_still(now):
            self._health.scraped(endpoint, now, answered=not is_lifeless)

    def tick(self, now: float) -> None:
        """Let time count, and from time to time compare endpoints with their peers."""
        if now - self._ticked_at > STALL_S:
            self._excused_until = now + AFTERMATH_S
        self._ticked_at = now
        self._health.tick(now)
        if now >= self._excused_until:
            self.sleeping.tick(now)
        if now - self._compared_at < COMPARE_S:
            return
        self._compared_at = now
        for members in self._registry.snapshot.by_pool.values():
            found = slowness(members, self._reputations.latencies(members))
            for endpoint, factor in zip(members, found, strict=True):
                self._health.compared(endpoint, factor, now)

    def _kind(self, endpoint: Endpoint) -> str:
        return self._engine(endpoint) or metrics_source(endpoint, self._config.pools.get(endpoint.pool)).engine or ""

    def _stood_still(self, now: float) -> bool:
        """Tell whether this process was stopped or blocked lately, so that what is overdue is so by its own fault."""
        return now < self._excused_until or now - self._ticked_at > STALL_S

    def _is_current(self, endpoint: Endpoint) -> bool:
        known = self._registry.snapshot.by_address.get(endpoint.address)
        return known is not None and known.generation == endpoint.generation
