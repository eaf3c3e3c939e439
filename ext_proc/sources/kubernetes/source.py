"""Follows the endpoints of every pool that lives in a Kubernetes cluster, and the priorities that it names."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol

from ext_proc.config import Config, KubernetesConfig, KubernetesPoolConfig
from ext_proc.sources.kubernetes.access import Access, ClusterAccess
from ext_proc.sources.kubernetes.objectives import ObjectiveWatch, PrioritiesListener, merged
from ext_proc.sources.kubernetes.pool import Listener, PoolWatch


class SourceListener(Listener, PrioritiesListener, Protocol):
    """Hears of pools and of priorities."""


class KubernetesSource:
    """Keeps pools in step with the cluster, each by itself; needs a running event loop from `configure` on.

    Args:
        listener: hears what comes of it.
        access: makes of the settings what opens sessions.
        rng: spreads the waits.
    """

    def __init__(
        self,
        listener: SourceListener,
        access: Callable[[KubernetesConfig], Access] = ClusterAccess,
        rng: random.Random | None = None,
    ) -> None:
        self._listener = listener
        self._access = access
        self._rng = rng or random.Random()  # noqa: S311  jitter is no secret
        self._settings = KubernetesConfig()
        self._wanted: dict[str, KubernetesPoolConfig] = {}
        self._watches: dict[str, PoolWatch] = {}
        self._objectives: dict[str, ObjectiveWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_degraded(self) -> bool:
        """Whether the endpoints of some pool may be out of date, or are not known."""
        return any(watch.is_degraded for watch in self._watches.values())

    def configure(self, config: Config) -> None:
        """Follow the pools of a configuration; those whose settings stay the same are not interrupted."""
        wanted = {name: pool.kubernetes for name, pool in config.pools.items() if pool.kubernetes is not None}
        same_access = config.kubernetes == self._settings
        for name in list(self._watches):
            if not same_access or wanted.get(name) != self._wanted[name]:
                self._end(self._watches.pop(name))
        namespaces = {each.namespace for each in wanted.values() if each.inference_pool is not None}
        if not config.gateway.objectives:
            namespaces = set()
        for name in list(self._objectives):
            if not same_access or name not in namespaces:
                self._end(self._objectives.pop(name))
        self._settings, self._wanted = config.kubernetes, wanted
        for name, settings in wanted.items():
            if name not in self._watches:
                access = self._access(self._settings)
                self._watches[name] = PoolWatch(
                    name, settings, access, self._settings.inactivity_s, self._listener, self._rng
                )
        for name in namespaces - self._objectives.keys():
            access = self._access(self._settings)
            self._objectives[name] = ObjectiveWatch(
                name, access, self._settings.inactivity_s, self._merge, self._listener, self._rng
            )
        self._merge()

    def _merge(self) -> None:
        """Tell which priorities the objectives of all pools name."""
        pools = [
            self._objectives[each.namespace].priorities(each.inference_pool)
            for each in self._wanted.values()
            if each.inference_pool is not None and each.namespace in self._objectives
        ]
        self._listener.priorities_changed(merged(pools))

    async def answered(self, seconds: float) -> None:
        """Wait until the endpoints of each pool are known, or why they are not; but no longer than this."""
        until = time.monotonic() + seconds
        while not all(watch.is_answered for watch in self._watches.values()) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Follow nothing any more."""
        for watches in (self._watches, self._objectives):
            while watches:
                self._end(watches.popitem()[1])
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _end(self, watch: PoolWatch | ObjectiveWatch) -> None:
        task = asyncio.create_task(watch.close(), name="stop following")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
