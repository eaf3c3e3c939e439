"""Keeps endpoints and their state in step with configuration, files, names, clusters and Envoy's EDS file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from ext_proc.config import Config, PoolConfig, parse_endpoints
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change, EndpointSpec, Registry
from ext_proc.sources.dns import HostNames, Resolver, SystemResolver
from ext_proc.sources.eds import EdsWriter, Offer, everybody
from ext_proc.sources.endpoints_file import EndpointsFile


class EndpointKeeper:
    """The one place where a change of endpoints takes effect.

    Args:
        registry: learns which endpoints there are.
        follow: gives state to endpoints that came and takes it from those that went.
        eds: Envoy's endpoints file; None writes none.
        on_change: hears each change after it took effect.
        on_source: hears a pool's name, or "eds", and what cannot be read or written; None once it can.
        on_name: hears a host name, and what is wrong with it; an empty text once nothing is.
        offer: how an endpoint is offered to Envoy's fallback policy.
        resolver: looks host names up; None asks the operating system.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        follow: Callable[[Change], None],
        eds: EdsWriter | None,
        on_change: Callable[[Change], None],
        on_source: Callable[[str, Exception | None], None],
        on_name: Callable[[str, str], None] = lambda _name, _problem: None,
        offer: Callable[[Endpoint], Offer] = everybody,
        resolver: Resolver | None = None,
    ) -> None:
        self._registry = registry
        self._follow = follow
        self._eds = eds
        self._on_change = on_change
        self._on_source = on_source
        self._offer = offer
        self._names = HostNames(resolver or SystemResolver(), self._names_changed, on_name)
        self._listed: dict[str, Sequence[EndpointSpec]] = {}
        self._configuring = False
        self._eds_problem = ""
        self._pools: dict[str, PoolConfig] = {}
        self._files: dict[str, EndpointsFile] = {}
        self._supplied: dict[str, Sequence[EndpointSpec]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def configure(self, config: Config) -> None:
        """Bring pools and watched files in line with a configuration; a running event loop watches the files."""
        self._configuring = True
        try:
            self._follow_config(config)
        finally:
            self._configuring = False
        self.write_eds()

    def _follow_config(self, config: Config) -> None:
        self._registry.set_default_pool(config.default_pool)
        self._names.configure(config.dns)
        for name in self._pools.keys() - config.pools.keys():
            self._unwatch(name)
            self._listed.pop(name, None)
            self.apply(self._registry.remove_pool(name))
        before, self._pools = self._pools, dict(config.pools)
        self._supplied = {
            name: specs
            for name, specs in self._supplied.items()
            if name in config.pools and _source_of(config.pools[name]) == _source_of(before[name])
        }
        for name, pool in config.pools.items():
            if name in self._files and before[name].endpoints_file == pool.endpoints_file:
                self._fill(name, self._files[name].specs)
                continue
            self._unwatch(name)
            if pool.endpoints_file is None:
                self._fill(name, ())
            else:
                self._watch(name, pool.endpoints_file)
        self._follow_names()

    def supply(self, name: str, specs: Sequence[EndpointSpec], renewed: Collection[str] = ()) -> None:
        """Take the endpoints of a pool that a cluster knows, in place of those it knew before.

        Args:
            name: the pool.
            specs: its endpoints.
            renewed: addresses behind which is another engine than before, which inherits nothing.
        """
        if name not in self._pools:
            return
        if renewed:
            self._supplied[name] = [spec for spec in specs if spec.address not in renewed]
            self._put(name)
        self._supplied[name] = specs
        self._put(name)

    def apply(self, change: Change) -> None:
        """Give state to endpoints that came, take it from those that went, and tell Envoy."""
        self._follow(change)
        if change:
            self.write_eds()
            self._on_change(change)

    def write_eds(self) -> None:
        """Write Envoy's endpoints file if it differs.

        A half-known fleet is not written: neither amid a change of configuration, nor over a good file of an earlier
        process while a list of endpoints has yet to be read.
        """
        if self._eds is None or self._configuring or (self._unread() and self._eds.path.exists()):
            return
        try:
            self._eds.write(self._registry.snapshot, self._offer)
        except ConfigError as error:
            if str(error) != self._eds_problem:  # it is tried every second
                self._eds_problem = str(error)
                self._on_source("eds", error)
            return
        if self._eds_problem:
            self._on_source("eds", None)
            self._eds_problem = ""

    @property
    def names_degraded(self) -> bool:
        """Whether some host name cannot be looked up or does not exist."""
        return self._names.is_degraded

    async def names_known(self, seconds: float) -> None:
        """Wait until each host name was looked up once, but no longer than this."""
        await self._names.first(seconds)

    def _unread(self) -> bool:
        if any(file.error is not None and not file.specs for file in self._files.values()):
            return True
        if any(pool.kubernetes is not None and name not in self._supplied for name, pool in self._pools.items()):
            return True
        by_pool = self._registry.snapshot.by_pool
        return any(not by_pool.get(name) and self._names.unanswered(specs) for name, specs in self._listed.items())

    async def close(self) -> None:
        """Stop watching."""
        await self._names.close()
        tasks = list(self._tasks.values())
        for name in list(self._files):
            self._unwatch(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch(self, name: str, path: str) -> None:
        file = EndpointsFile(path, name, parse_endpoints, self._read, self._on_source)
        self._files[name] = file
        file.start()
        if file.error is not None:
            self._fill(name, ())
        self._tasks[name] = asyncio.create_task(file.run(), name=f"watch endpoints of {name}")

    def _unwatch(self, name: str) -> None:
        if self._files.pop(name, None) is not None:
            self._on_source(name, None)  # what was wrong with a file is of no interest once it is not read
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def _read(self, name: str, specs: Sequence[EndpointSpec]) -> None:
        self._fill(name, specs)
        self._on_source(name, None)

    def _fill(self, name: str, from_file: Sequence[EndpointSpec]) -> None:
        self._listed[name] = (*self._pools[name].specs, *from_file)
        if not self._configuring:
            self._follow_names()
        self._put(name)

    def _put(self, name: str) -> None:
        specs = (*self._names.expanded(self._listed[name]), *self._supplied.get(name, ()))
        pool = self._pools[name]
        self.apply(self._registry.replace(name, map(pool.ranked, specs), frozenset(pool.models)))

    def _follow_names(self) -> None:
        self._names.follow(spec for specs in self._listed.values() for spec in specs)

    def _names_changed(self) -> None:
        for name in self._listed:
            self._put(name)


def _source_of(pool: PoolConfig) -> object:
    """Return what of a pool's settings says which endpoints a cluster is asked for."""
    asked = pool.kubernetes
    return None if asked is None else (asked.namespace, asked.inference_pool, asked.service)
