"""The endpoints of a fake cluster, followed as kvpicker does it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from ext_proc.assembly import Core, build_core
from ext_proc.config import Config, parse
from ext_proc.core.lifecycle import Stage
from ext_proc.core.observer import NoObserver
from ext_proc.core.pool import Change
from ext_proc.ops.events import Event
from ext_proc.sources.keeper import EndpointKeeper
from ext_proc.watching import Watching

POOL = "pools: {p: {models: [m], kubernetes: {namespace: default, inference_pool: vllm}}}"
SERVICE = "pools: {p: {models: [m], kubernetes: {namespace: default, service: vllm}}}"


class Following:
    """A registry that follows a cluster.

    Args:
        url: the API server.
        directory: for the kubeconfig.
        inactivity: seconds of silence after which a connection is dead.
        cluster: further settings of the kubeconfig's cluster.
        user: its user.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        inactivity: float = 30.0,
        cluster: dict[str, Any] | None = None,
        user: dict[str, Any] | None = None,
    ) -> None:
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url, cluster or {}, user or {})))
        self._inactivity = inactivity
        self.core: Core = build_core(self.config(POOL), NoObserver())
        self.changes: list[Change] = []
        self.said: list[tuple[Event, dict[str, Any]]] = []
        self.keeper = EndpointKeeper(
            registry=self.core.registry,
            follow=self.core.follow,
            eds=None,
            on_change=self.changes.append,
            on_source=lambda _source, _error: None,
        )
        registry, lifecycle = self.core.registry, self.core.lifecycle
        self.watching = Watching(
            self.keeper, registry, lifecycle, lambda event, **fields: self.said.append((event, fields))
        )

    def config(self, text: str) -> Config:
        """Read a configuration, with the cluster added."""
        cluster = f"kubernetes: {{kubeconfig: {self.kubeconfig}, inactivity_s: {self._inactivity}}}\n"
        return parse(cluster + text)

    def configure(self, text: str) -> None:
        """Go by another configuration."""
        config = self.config(text)
        self.watching.check(config)
        self.keeper.configure(config)
        self.watching.configure(config)

    def addresses(self, pool: str = "p") -> set[str]:
        """Return the endpoints of a pool that may be chosen."""
        listed, stage = self.core.registry.snapshot.by_pool.get(pool, ()), self.core.lifecycle.stage
        return {endpoint.address for endpoint in listed if stage(endpoint.slot) is Stage.ACTIVE}

    def failures(self) -> list[str]:
        """Return the reasons of failures that were logged."""
        return [fields["reason"] for event, fields in self.said if event is Event.SOURCE_FAILED]

    def has(self, *hosts: str, port: int = 8000) -> bool:
        """Tell whether the pool's endpoints are exactly these hosts."""
        return self.addresses() == {f"{host}:{port}" for host in hosts}


def _kubeconfig(url: str, cluster: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "clusters": [{"name": "fake", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "fake", "user": user}],
    }


@asynccontextmanager
async def following(made: Following, text: str) -> AsyncIterator[Following]:
    """Follow the pools of a configuration until the end."""
    config = made.config(text)
    made.keeper.configure(config)
    try:
        async with made.watching.following(config):
            yield made
    finally:
        await made.keeper.close()
