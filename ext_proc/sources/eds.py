"""Writes the endpoint discovery (EDS) file from which Envoy learns which hosts it may be told to use."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.core.lifecycle import Stage
from ext_proc.sources.replacing import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.core.model import Endpoint
    from ext_proc.core.snapshot import Snapshot

TYPE_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
MODE = 0o644
"""Envoy often runs as another user, and it has to read the file."""


class HostHealth(enum.StrEnum):
    """What Envoy's fallback policy is told of a host, in Envoy's words."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"


class Offer(NamedTuple):
    """How an endpoint is offered to the fallback policy, and its share of what others get, in [0, 1]."""

    health: HostHealth = HostHealth.HEALTHY
    share: float = 1.0


HEALTHY = Offer()


_FULL_WEIGHT = 10
"""In tenths, so that a share that grows is written a few times only."""

_BY_STATE = {
    "warming": HostHealth.UNHEALTHY,
    "degraded": HostHealth.DEGRADED,
    "ejected": HostHealth.UNHEALTHY,
    "probing": HostHealth.UNHEALTHY,
}


def offered(state: str, stage: Stage, share: float = 1.0) -> Offer:
    """Offer an endpoint by its health and the share it may have, unless it is unready or an operator took it out."""
    if stage is Stage.UNREADY:
        return Offer(HostHealth.UNHEALTHY)
    if stage is not Stage.ACTIVE:
        return Offer(HostHealth.DRAINING)
    return Offer(_BY_STATE.get(state, HostHealth.HEALTHY), share)


def everybody(_endpoint: Endpoint) -> Offer:
    """Offer each endpoint alike."""
    return HEALTHY


def render(snapshot: Snapshot, cluster: str, version: int, offer: Callable[[Endpoint], Offer] = everybody) -> bytes:
    """Make the DiscoveryResponse that lists every endpoint once.

    Endpoints outside the default pool are UNHEALTHY: override_host ignores health, so the picker may name them, and
    the fallback policy honours it, so traffic that nobody steers never meets another model. This needs
    `healthy_panic_threshold: 0` on the cluster; otherwise Envoy's panic mode uses UNHEALTHY hosts as well.

    If none of the default pool is fit, those that an operator has not taken out are offered all the same, as the
    picker does: an answer of 503 to everybody would be no better.
    """
    resources = [_assignment(snapshot, cluster, offer)]
    response = {"version_info": str(version), "type_url": TYPE_URL, "resources": resources}
    return msgspec.json.format(msgspec.json.encode(response), indent=1) + b"\n"


class EdsWriter:
    """Keeps one EDS file in step with the snapshots that it is given.

    Envoy applies a file that is renamed into place within milliseconds and does not see one written in place.
    """

    def __init__(self, path: Path | str, cluster: str) -> None:
        """Take up the file as an earlier process left it, so that an unchanged list is not written again.

        Args:
            path: the file; its directory must exist, otherwise ConfigError is raised.
            cluster: the name of the EDS cluster in Envoy's configuration.
        """
        self.path = Path(path)
        self._cluster = cluster
        if not self.path.parent.is_dir():
            raise ConfigError(f"the directory {self.path.parent} does not exist", path=str(self.path))
        self._version, self._resources = _left_by_others(self.path)

    def write(self, snapshot: Snapshot, offer: Callable[[Endpoint], Offer] = everybody) -> bool:
        """Put the snapshot's endpoints into the file, offered as `offer` says; tell whether that made a change.

        A file that was taken away is written again: an Envoy that starts would have no endpoints.

        Raises ConfigError if the file cannot be written; the old one then stays, and the next call tries again.
        """
        resources = [_assignment(snapshot, self._cluster, offer)]
        if resources == self._resources and self.path.exists():
            return False
        version = self._version + 1
        try:
            replace_file(self.path, render(snapshot, self._cluster, version, offer), MODE)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror or error}", path=str(self.path)) from error
        self._version, self._resources = version, resources
        return True


def _assignment(snapshot: Snapshot, cluster: str, offer: Callable[[Endpoint], Offer]) -> dict[str, Any]:
    offers = {endpoint.slot: offer(endpoint) for endpoint in snapshot.by_pool.get(snapshot.default_pool or "", ())}
    if all(offered.health in (HostHealth.UNHEALTHY, HostHealth.DRAINING) for offered in offers.values()):
        offers = {s: HEALTHY if o.health is HostHealth.UNHEALTHY else o for s, o in offers.items()}
    weighted = any(offered.share < 1.0 for offered in offers.values())
    endpoints = sorted(snapshot.endpoints, key=lambda endpoint: endpoint.address)
    others = Offer(HostHealth.UNHEALTHY)
    hosts = [_host(endpoint, offers.get(endpoint.slot, others), weighted=weighted) for endpoint in endpoints]
    localities = [{"lb_endpoints": hosts}] if hosts else []
    return {"@type": TYPE_URL, "cluster_name": cluster, "endpoints": localities}


def _host(endpoint: Endpoint, offer: Offer, *, weighted: bool) -> dict[str, Any]:
    host, _, port = endpoint.address.rpartition(":")
    address = {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
    weight = {"load_balancing_weight": max(round(_FULL_WEIGHT * offer.share), 1)} if weighted else {}
    return {"endpoint": {"address": address}, "health_status": offer.health.value, **weight}


def _left_by_others(path: Path) -> tuple[int, Any]:
    """Return version and resources of an existing file; zero and None if it is absent or not one of ours."""
    try:
        response = msgspec.json.decode(path.read_bytes())
        return int(response["version_info"]), response["resources"]
    except (OSError, ValueError, TypeError, KeyError):
        return 0, None
