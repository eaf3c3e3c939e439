"""Carries what a Kubernetes cluster says of pools to where it belongs: the endpoints, and the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from ext_proc.config import Config, PoolConfig
from ext_proc.core.exchange_policy import Objectives
from ext_proc.core.lifecycle import Lifecycle
from ext_proc.core.pool import Registry
from ext_proc.ops.events import Event
from ext_proc.ops.text import printable
from ext_proc.sources.keeper import EndpointKeeper
from ext_proc.sources.kubernetes.access import check_installed, check_reachable
from ext_proc.sources.kubernetes.endpoints import Found, PoolFacts
from ext_proc.sources.kubernetes.source import KubernetesSource

ANSWERED_WITHIN_S = 10.0
"""How long the start waits for the API server of pools beside others; alone they must be known before it is ready."""

LOOK_S = 0.1
"""Seconds between two looks whether it has answered after all."""


class Watching:
    """The pools of a cluster, where there are any; elsewhere nothing.

    Args:
        keeper: takes the endpoints.
        registry: which there are.
        lifecycle: takes which of them are not ready.
        say: writes a log event with its fields.

    Attributes:
        objectives: the priorities that InferenceObjectives name.
    """

    def __init__(
        self, keeper: EndpointKeeper, registry: Registry, lifecycle: Lifecycle, say: Callable[..., None]
    ) -> None:
        self.objectives = Objectives()
        self._keeper = keeper
        self._registry = registry
        self._lifecycle = lifecycle
        self._say = say
        self._failure_mode = ""
        self._pools: Mapping[str, PoolConfig] = {}
        self._owners: dict[str, Found] = {}
        self._source = KubernetesSource(self)

    @staticmethod
    def check(config: Config) -> None:
        """Refuse a configuration that cannot be followed here.

        Raises:
            ConfigError: a package is missing, or there is no cluster.
        """
        check_installed(config)
        check_reachable(config)

    @asynccontextmanager
    async def following(self, config: Config) -> AsyncIterator[None]:
        """Follow the pools of a configuration until the end.

        Raises:
            ConfigError: it cannot be followed here.
        """
        self.check(config)
        self.configure(config)
        try:
            yield
        finally:
            await self._source.close()

    def configure(self, config: Config) -> None:
        """Go by another configuration, one that was checked; needs a running event loop."""
        self._failure_mode, self._pools = config.failure_mode, config.pools
        self._owners = {name: found for name, found in self._owners.items() if name in config.pools}
        self._source.configure(config)
        # What a cluster said of endpoints that are listed elsewhere now holds no more.
        others = [one for one in self._registry.snapshot.endpoints if config.pools[one.pool].kubernetes is None]
        news = [self._lifecycle.set_ready(one, ready=True) for one in others]
        if any(news):
            self._keeper.write_eds()

    async def answered(self) -> None:
        """Wait until the endpoints are known, for a while."""
        await self._source.answered(ANSWERED_WITHIN_S)

    @property
    def is_blind(self) -> bool:
        """Whether no endpoint can be known yet: all pools live in the cluster, and it has told of none of them."""
        return bool(self._pools) and all(
            pool.kubernetes is not None
            and not pool.endpoints
            and pool.endpoints_file is None
            and name not in self._owners
            for name, pool in self._pools.items()
        )

    async def sighted(self) -> None:
        """Wait until that is over."""
        while self.is_blind:  # noqa: ASYNC110  seldom, and for as long as the cluster is away
            await asyncio.sleep(LOOK_S)

    @property
    def is_degraded(self) -> bool:
        """Whether the endpoints of some pool may be out of date, or are not known."""
        return self._source.is_degraded

    def supply(self, pool: str, found: Found) -> None:
        """Put the endpoints of a pool into effect."""
        renewed = found.renewed(self._owners.get(pool, Found()))
        self._keeper.supply(pool, found.specs, renewed)
        self._owners[pool] = found
        endpoints = self._registry.snapshot.by_pool.get(pool, ())
        news = [self._lifecycle.set_ready(one, ready=one.address not in found.unready) for one in endpoints]
        if any(news):
            self._keeper.write_eds()

    def state_changed(self, pool: str, problem: str, detail: str) -> None:
        """Log what is wrong, or that nothing is any more."""
        if problem:
            self._say(Event.SOURCE_FAILED, source="kubernetes", pool=pool, reason=problem, error=printable(detail))
        else:
            self._say(Event.SOURCE_RECOVERED, source="kubernetes", pool=pool)

    def priorities_changed(self, priorities: Mapping[str, int]) -> None:
        """Let requests have the priorities that InferenceObjectives name now."""
        self.objectives.priorities = priorities

    def objectives_state_changed(self, namespace: str, problem: str, detail: str) -> None:
        """Log what is wrong with the objectives of a namespace, or that nothing is any more."""
        told: dict[str, object] = {"source": "objectives", "namespace": namespace}
        if problem:
            self._say(Event.SOURCE_FAILED, **told, reason=problem, error=printable(detail))
        else:
            self._say(Event.SOURCE_RECOVERED, **told)

    def facts_changed(self, pool: str, facts: PoolFacts) -> None:
        """Log what an InferencePool says, and whether kvpicker fails as the pool's failure mode has it."""
        wanted = {"FailOpen": "open", "FailClose": "refuse"}.get(facts.failure_mode, self._failure_mode)
        self._say(
            Event.INFERENCE_POOL_CHANGED,
            pool=pool,
            failure_mode=facts.failure_mode,
            agrees=wanted == self._failure_mode,
            parents=list(facts.parents),
            problems=list(facts.problems),
        )
