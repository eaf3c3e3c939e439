"""What gateways have in common: Gateway, HTTPRoute, InferencePool."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from ext_proc.manifests.options import ManifestOptions

Body: TypeAlias = dict[str, Any]

GATEWAY_API: Final = "gateway.networking.k8s.io"
INFERENCE_API: Final = "inference.networking.k8s.io"


class Manifest(NamedTuple):
    """One object and what it is for."""

    why: str
    body: Body


def body(api_version: str, kind: str, name: str, options: ManifestOptions, spec: Body) -> Body:
    """Put an object together."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": options.namespace},
        "spec": spec,
    }


def gateway(options: ManifestOptions, default_class: str, extra: Body | None = None) -> Manifest:
    """Make the entry for clients; `extra` joins its spec."""
    spec = {
        "gatewayClassName": options.gateway_class or default_class,
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        **(extra or {}),
    }
    return Manifest(
        "Where clients connect. Leave it out if you have a Gateway, and name yours with --gateway.",
        body(f"{GATEWAY_API}/v1", "Gateway", options.gateway, options, spec),
    )


def parent(options: ManifestOptions) -> Body:
    """Refer to the Gateway."""
    return {"group": GATEWAY_API, "kind": "Gateway", "name": options.gateway}


def pool_reference(options: ManifestOptions) -> Body:
    """Refer to the InferencePool."""
    return {"group": INFERENCE_API, "kind": "InferencePool", "name": options.pool}


def http_route(options: ManifestOptions, backend: Body) -> Manifest:
    """Send everything that comes to the Gateway to one backend."""
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [backend],
        "timeouts": {"request": "0s"},
    }
    spec = {"parentRefs": [parent(options)], "rules": [rule]}
    return Manifest(
        "All paths go to the engines; kvpicker looks at path and model. No time limit: Envoy's 15 s would cut"
        " generations.",
        body(f"{GATEWAY_API}/v1", "HTTPRoute", options.gateway, options, spec),
    )


def inference_pool(options: ManifestOptions, failure_mode: str, why: str) -> Manifest:
    """Make the engines and their picker known; `failure_mode` is `FailOpen` or `FailClose`, `why` explains it."""
    reference = {
        "group": "",
        "kind": "Service",
        "name": options.picker,
        "port": {"number": options.picker_port},
        "failureMode": failure_mode,
    }
    spec = {
        "selector": {"matchLabels": options.match_labels},
        "targetPorts": [{"number": port} for port in options.target_ports],
        "endpointPickerRef": reference,
    }
    return Manifest(
        f"The engines, and kvpicker as their endpoint picker. {why} kvpicker follows this object too:"
        f" `kubernetes: {{namespace: {options.namespace}, inference_pool: {options.pool}}}`.",
        body(f"{INFERENCE_API}/v1", "InferencePool", options.pool, options, spec),
    )


def service_host(options: ManifestOptions) -> str:
    """Name kvpicker's Service for the whole cluster."""
    return f"{options.picker}.{options.namespace}.svc.cluster.local"
