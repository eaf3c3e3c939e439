"""Envoys with the settings that gateways generate, as far as they concern an ext_proc server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ext_proc.core.names import DESTINATION, LB_NAMESPACE, SERVED

TYPES = "type.googleapis.com/envoy.extensions"
FULL = "FULL_DUPLEX_STREAMED"
BOTH = {"request": FULL, "response": FULL}


def istio(processor: str, engines: Sequence[str], **modes: str) -> dict[str, Any]:
    """Istio's InferencePool: settings per route, endpoints by override_host from metadata alone, served reported."""
    per_route = {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {
            "failure_mode_allow": False,
            "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
            "processing_mode": processing_mode(**(modes or BOTH)),
        },
    }
    filter_ = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "dummy"}, "timeout": "10s"},
        "processing_mode": {"request_header_mode": "SKIP", "response_header_mode": "SKIP"},
        "message_timeout": "1000s",
        "failure_mode_allow": True,
        "metadata_options": {
            "receiving_namespaces": {"untyped": [LB_NAMESPACE]},
            "forwarding_namespaces": {"untyped": [LB_NAMESPACE]},
        },
    }
    dummy = {**_processor("dummy", "127.0.0.1:1")}
    return _config(filter_, [_processor("extproc", processor), dummy, _override_host(engines)], per_route=per_route)


def ai_gateway(processor: str, engines: Sequence[str], **modes: str) -> dict[str, Any]:
    """Envoy AI Gateway: no metadata at all, one address by header, small buffers."""
    filter_ = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
        "processing_mode": processing_mode(**(modes or BOTH)),
        "message_timeout": "300s",
        "allow_mode_override": True,
    }
    up = {
        "name": "up",
        "type": "ORIGINAL_DST",
        "connect_timeout": "10s",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        **_http1_with_trailers(),
    }
    return _config(filter_, [_processor("extproc", processor), up], buffer=32768)


def envoy_gateway(processor: str, engines: Sequence[str], **modes: str) -> dict[str, Any]:
    """Envoy Gateway's EnvoyExtensionPolicy: bodies as the user says, nothing of the answer, 32 KiB of buffer."""
    filter_ = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
        "processing_mode": processing_mode(**(modes or {"request": "STREAMED"})),
        "message_timeout": "5s",
        "metadata_options": {"receiving_namespaces": {"untyped": [LB_NAMESPACE, "kvpicker"]}},
    }
    return _config(filter_, [_processor("extproc", processor), _override_host(engines)], buffer=32768)


def kgateway(processor: str, engines: Sequence[str], **modes: str) -> dict[str, Any]:
    """The InferencePool of kgateway: a buffered body, and subsets of one host each, which take one address."""
    filter_ = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
        "processing_mode": processing_mode(**(modes or {"request": "BUFFERED"})),
        "message_timeout": "5s",
        "metadata_options": {"receiving_namespaces": {"untyped": [LB_NAMESPACE, "kvpicker"]}},
    }
    up = _static("up", engines) | _http1_with_trailers()
    for entry in up["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        socket = entry["endpoint"]["address"]["socket_address"]
        address = f"{socket['address']}:{socket['port_value']}"
        entry["metadata"] = {"filter_metadata": {LB_NAMESPACE: {DESTINATION: address}}}
    up["lb_subset_config"] = {
        "fallback_policy": "ANY_ENDPOINT",
        "subset_selectors": [{"keys": [DESTINATION], "single_host_per_subset": True}],
    }
    return _config(filter_, [_processor("extproc", processor), up])


def logged(config: dict[str, Any]) -> dict[str, Any]:
    """Add to a configuration that the processor's metadata is taken, and an access log that it gets."""
    clusters = config["static_resources"]["clusters"]
    clusters.append(next(cluster for cluster in clusters if cluster["name"] == "extproc") | {"name": "log"})
    for listener in config["static_resources"]["listeners"][:2]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        options = manager["http_filters"][0]["typed_config"]["metadata_options"]
        options["receiving_namespaces"]["untyped"].append("kvpicker")
        common = {
            "log_name": "kvpicker",
            "grpc_service": {"envoy_grpc": {"cluster_name": "log"}},
            "transport_api_version": "V3",
            "buffer_flush_interval": "0.05s",
        }
        kind = f"{TYPES}.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
        entry = {"@type": kind, "common_config": common}
        manager["access_log"] = [{"name": "envoy.access_loggers.http_grpc", "typed_config": entry}]
    return config


def processing_mode(request: str = "NONE", response: str = "") -> dict[str, str]:
    """Say what is sent; headers of answers and trailers only where the gateways do it."""
    answers = response != ""
    return {
        "request_header_mode": "SEND",
        "request_body_mode": request,
        "request_trailer_mode": "SEND" if FULL in {request, response} else "SKIP",
        "response_header_mode": "SEND" if answers else "SKIP",
        "response_body_mode": response or "NONE",
        "response_trailer_mode": "SEND" if answers else "SKIP",
    }


def _config(
    filter_: dict[str, Any],
    clusters: list[dict[str, Any]],
    *,
    per_route: dict[str, Any] | None = None,
    buffer: int | None = None,
) -> dict[str, Any]:
    ext_proc = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {"@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor", **filter_},
    }
    route: dict[str, Any] = {"match": {"prefix": "/"}, "route": {"cluster": "up", "timeout": "0s"}}
    if per_route is not None:
        route["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": per_route}
    main = _manager("main", [route], [ext_proc])
    main["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    hop = {"match": {"prefix": "/"}, "route": {"cluster": "hop", "timeout": "0s"}}
    listeners = [
        _listener("main", {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, main, buffer),
        _listener("main-h2", {"pipe": {"path": "@PIPE@"}}, main | {"stat_prefix": "main_h2"}, buffer),
        _listener("front", {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, _manager("f", [hop], [])),
    ]
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                *({"circuit_breakers": {"thresholds": [{"max_requests": 40000}]}} | cluster for cluster in clusters),
                _static_pipe("hop", "@PIPE@") | _http2(),
            ],
        },
    }


def _manager(name: str, routes: list[dict[str, Any]], filters: list[dict[str, Any]]) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
    }
    return {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_protocol_options": {"enable_trailers": True},
        "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": routes}]},
        "http_filters": [*filters, router],
    }


def _listener(name: str, address: dict[str, Any], manager: dict[str, Any], buffer: int | None = None) -> dict[str, Any]:
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    limit = {} if buffer is None else {"per_connection_buffer_limit_bytes": buffer}
    return {"name": name, "address": address, "filter_chains": [{"filters": filters}], **limit}


def _override_host(engines: Sequence[str]) -> dict[str, Any]:
    def path(key: str) -> dict[str, Any]:
        return {"key": LB_NAMESPACE, "path": [{"key": key}]}

    policies = f"{TYPES}.load_balancing_policies"
    robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": f"{policies}.round_robin.v3.RoundRobin"},
    }
    policy = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{policies}.override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": path(DESTINATION)}],
            "selected_host_key": path(SERVED),
            "fallback_policy": {"policies": [{"typed_extension_config": robin}]},
        },
    }
    return {
        **_static("up", engines),
        **_http1_with_trailers(),
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
    }


def _static(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    entries = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        entries.append({"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}})
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": entries}]},
    }


def _static_pipe(name: str, path: str) -> dict[str, Any]:
    entry = {"endpoint": {"address": {"pipe": {"path": path}}}}
    return {**_static(name, ()), "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [entry]}]}}


def _processor(name: str, address: str) -> dict[str, Any]:
    return {**_static(name, (address,)), **_http2()}


def _http2() -> dict[str, Any]:
    return _protocol({"explicit_http_config": {"http2_protocol_options": {}}})


def _http1_with_trailers() -> dict[str, Any]:
    return _protocol({"explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}})


def _protocol(options: dict[str, Any]) -> dict[str, Any]:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {"typed_extension_protocol_options": {name: {"@type": f"type.googleapis.com/{name}", **options}}}
