"""The Envoy configuration of the local stack: the lean profile, and a way around kvpicker to measure against."""

from __future__ import annotations

from typing import Any, Final

import yaml

from ext_proc.bootstrap import EnvoyOptions, render
from ext_proc.core.addresses import canonical

DIRECT: Final = "kvpicker_direct"

_HTTP: Final = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER: Final = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def entry_config(options: EnvoyOptions, probe: str) -> str:
    """Render the bootstrap as YAML.

    Beside the entry there is a listener on a free loopback port that knows nothing of kvpicker and leads to one
    engine, `probe` (`ip:port`).

    Raises:
        ConfigError: an address in the options cannot be used.
    """
    config = render(options)
    resources = config["static_resources"]
    for listener in resources["listeners"]:
        # Envoy shares ports by default: a second stack would take half of the connections of the first.
        listener["enable_reuse_port"] = False
    resources["listeners"].append(_direct_listener())
    resources["clusters"].append(_direct_cluster(probe))
    return yaml.safe_dump(config, sort_keys=False)


def _direct_listener() -> dict[str, Any]:
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": DIRECT, "timeout": "0s"}}]
    manager = {
        "@type": _HTTP,
        "stat_prefix": "direct",
        "route_config": {"name": DIRECT, "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": _ROUTER}}],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"name": DIRECT, "address": _socket("127.0.0.1:0"), "filter_chains": [{"filters": filters}]}


def _direct_cluster(probe: str) -> dict[str, Any]:
    hosts = [{"endpoint": {"address": _socket(probe)}}]
    return {
        "name": DIRECT,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": DIRECT, "endpoints": [{"lb_endpoints": hosts}]},
    }


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    if port != "0":
        host = canonical(address).rpartition(":")[0]
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
