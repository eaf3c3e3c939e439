"""Kubernetes objects as an API server shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]


def pod(
    name: str,
    ip: str | None,
    *,
    uid: str = "",
    ready: bool = True,
    terminating: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    created: str = "2026-01-01T00:00:00Z",
) -> Object:
    """Make a pod, with a good part of what real ones carry."""
    metadata: Object = {
        "name": name,
        "namespace": "default",
        "uid": uid or f"uid-{name}",
        "creationTimestamp": created,
        "labels": dict(labels or {"app": "vllm"}),
    }
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if terminating:
        metadata |= {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 30}
    status: Object = {
        "phase": phase,
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": created},
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": created},
            {"type": "ContainersReady", "status": "True" if ready else "False", "lastTransitionTime": created},
        ],
        "qosClass": "Burstable",
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.0.2.1"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": _spec(), "status": status}


def _spec() -> Object:
    environment = [{"name": f"SETTING_{number}", "value": "x" * 60} for number in range(20)]
    container = {
        "name": "engine",
        "image": "registry.example/engine:1",
        "args": ["--model", "acme/chat-8b", "--max-model-len", "32768"],
        "env": environment,
        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"containers": [container], "nodeName": "node-1", "terminationGracePeriodSeconds": 30}


def inference_pool(
    name: str,
    selector: Mapping[str, str] | None = None,
    ports: Sequence[int] = (8000,),
    *,
    failure_mode: str = "FailOpen",
    parents: Sequence[Object] = (),
) -> Object:
    """Make an InferencePool."""
    return {
        "kind": "InferencePool",
        "apiVersion": "inference.networking.k8s.io/v1",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1},
        "spec": {
            "selector": {"matchLabels": dict({"app": "vllm"} if selector is None else selector)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "kvpicker", "port": {"number": 9002}, "failureMode": failure_mode},
        },
        "status": {"parents": list(parents)},
    }


def parent(gateway: str, **conditions: tuple[str, str]) -> Object:
    """Make what a gateway says of an InferencePool: condition by status and reason."""
    found = [{"type": name, "status": status, "reason": reason} for name, (status, reason) in conditions.items()]
    return {"parentRef": {"name": gateway, "namespace": "default"}, "conditions": found}


def objective(name: str, priority: int | None, pool: str = "vllm", group: str = "llm-d.ai") -> Object:
    """Make an InferenceObjective."""
    spec: Object = {"poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}}
    return {
        "kind": "InferenceObjective",
        "apiVersion": f"{group}/v1alpha2",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{group}-{name}", "generation": 1},
        "spec": spec if priority is None else spec | {"priority": priority},
    }


def service(name: str, selector: Mapping[str, str] | None) -> Object:
    """Make a Service."""
    spec = {"ports": [{"name": "http", "port": 80, "targetPort": 8000}]}
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": spec if selector is None else spec | {"selector": dict(selector)},
    }


def endpoint(ip: str, uid: str, **conditions: bool | None) -> Object:
    """Make an address of a slice."""
    target = {"kind": "Pod", "namespace": "default", "name": uid.removeprefix("uid-"), "uid": uid}
    return {"addresses": [ip], "conditions": conditions, "targetRef": target, "nodeName": "node-1"}


def endpoint_slice(
    name: str,
    service_name: str,
    endpoints: Sequence[Object] | None,
    ports: Mapping[str, int] | None = None,
    family: str = "IPv4",
) -> Object:
    """Make an EndpointSlice."""
    numbers = {"http": 8000} if ports is None else ports
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in numbers.items()],
    }
