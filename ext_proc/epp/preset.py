"""What `kvpicker epp` takes for granted, and what its flags change, as parts of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ext_proc.core.names import FAIRNESS_ID, OBJECTIVE

GRPC_PORT = 9002
HEALTH_PORT = 9003
METRICS_PORT = 9090
"""Where gateways and their charts look for an endpoint picker."""

SELECTED_POOL = "endpoints"
"""What the pool of an endpoint selector is called, which has no name of its own."""

ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  other pods are who asks

ONE_ADDRESS = "original-dst"
"""The data plane that every gateway can be taken for: a pick names one endpoint."""

DRAIN_S = 10.0
"""Gateways find pickers by DNS, which they ask every five seconds, and which may be five seconds behind."""

PASSING_S = 15.0
"""What is left of the 30 s that Kubernetes gives, with a margin."""


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None or empty where it says nothing.

    Attributes:
        pool_name: name of an InferencePool.
        pool_namespace: its namespace, or that of the pods.
        selector: labels of pods, in place of an InferencePool.
        target_ports: ports of these pods.
        address: IP to listen on.
        grpc_port: port of ext_proc.
        health_port: port of health checks.
        metrics_port: port of metrics.
        plaintext: whether ext_proc is not encrypted.
        cert_path: folder with `tls.crt` and `tls.key`.
        client_ca: file with the authorities of clients.
        data_plane: as `envoy.data_plane`.
        drain_s: as `drain_s`.
    """

    pool_name: str | None = None
    pool_namespace: str = "default"
    selector: str | None = None
    target_ports: tuple[int, ...] = ()
    address: str = ALL_ADDRESSES
    grpc_port: int | None = None
    health_port: int | None = None
    metrics_port: int | None = None
    plaintext: bool | None = None
    cert_path: Path | None = None
    client_ca: Path | None = None
    data_plane: str | None = None
    drain_s: float | None = None


def preset(flags: Flags) -> dict[str, Any]:
    """Return what holds where neither the configuration file nor a flag says otherwise."""
    return {
        "listen": [f"{flags.address}:{GRPC_PORT}"],
        "health_listen": [f"{flags.address}:{HEALTH_PORT}"],
        "admin": {"listen": f"{flags.address}:{METRICS_PORT}", "pages": "loopback"},
        "tls": {},
        "envoy": {"data_plane": ONE_ADDRESS},
        "gateway": {"model_rewrite": True, "targets": True, "objectives": True},
        "tenants": {"header": FAIRNESS_ID, "priority_header": OBJECTIVE},
        "drain_s": DRAIN_S,
        "passing_s": PASSING_S,
        "pools": {},
    }


def overrides(flags: Flags) -> dict[str, Any]:
    """Return what the flags say, whatever the configuration file does."""
    made: dict[str, Any] = {}
    if flags.pool_name is not None:
        pool = {"namespace": flags.pool_namespace, "inference_pool": flags.pool_name}
        made["pools"] = {flags.pool_name: {"kubernetes": pool}}
    if flags.selector is not None:
        pods = {"namespace": flags.pool_namespace, "selector": flags.selector, "target_ports": [*flags.target_ports]}
        made["pools"] = {SELECTED_POOL: {"kubernetes": pods}}
    if flags.grpc_port is not None:
        made["listen"] = [f"{flags.address}:{flags.grpc_port}"]
    if flags.health_port is not None:
        made["health_listen"] = [f"{flags.address}:{flags.health_port}"]
    if flags.metrics_port is not None:
        made["admin"] = {"listen": f"{flags.address}:{flags.metrics_port}"}
    if flags.data_plane is not None:
        made["envoy"] = {"data_plane": flags.data_plane}
    if flags.drain_s is not None:
        made["drain_s"] = flags.drain_s
    return made | _encryption(flags)


def _encryption(flags: Flags) -> dict[str, Any]:
    if flags.plaintext:
        return {"tls": None}
    tls: dict[str, Any] = {}
    if flags.cert_path is not None:
        tls = {"certificate": str(flags.cert_path / "tls.crt"), "key": str(flags.cert_path / "tls.key")}
    if flags.client_ca is not None:
        tls["client_ca"] = str(flags.client_ca)
    return {"tls": tls} if tls or flags.plaintext is False else {}


def layered(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Lay parts of a configuration over each other: the later wins, mappings are joined field by field."""
    made: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            below = made.get(name)
            joined = isinstance(value, Mapping) and isinstance(below, Mapping)
            made[name] = layered(below, value) if joined else value  # type: ignore[arg-type]
    return made
