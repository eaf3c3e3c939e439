"""Envoy Gateway: kvpicker as a plain ext_proc service, by policies on a Gateway and a route."""

from __future__ import annotations

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import (
    DESTINATION,
    ENGINE_ORDERS,
    EXPLAIN,
    EXPLAIN_PASSED,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    PICKER_HEADERS,
    SESSION,
)
from ext_proc.manifests.objects import GATEWAY_API, Body, Manifest, body, gateway, http_route, parent
from ext_proc.manifests.options import ManifestOptions

API = "gateway.envoyproxy.io/v1alpha1"
NO_LIMIT = 100_000
STRIPPED = (*PICKER_HEADERS, SESSION, EXPLAIN, EXPLAIN_PASSED, *ENGINE_ORDERS)
"""Headers with which clients could choose engines; early headers are removed by name, not by prefix."""


def envoy_gateway(options: ManifestOptions) -> list[Manifest]:
    """All objects for Envoy Gateway; raises ConfigError if the engines' Service has several ports."""
    if len(options.target_ports) != 1:
        raise ConfigError("one port of the engines' Service is possible", path="target_port")
    backend = {"kind": "Service", "name": options.pool, "port": options.target_ports[0]}
    reference = {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": options.gateway}
    return [
        *(_replica(options, number) for number in range(options.replicas)),
        _proxy(options),
        gateway(options, "eg", {"infrastructure": {"parametersRef": reference}}),
        _client_policy(options),
        http_route(options, backend),
        _backend_policy(options),
        _extension_policy(options),
        *([] if options.tls_ca is None else [_tls_policy(options)]),
    ]


def _replica(options: ManifestOptions, number: int) -> Manifest:
    name = f"{options.picker}-{number}"
    plain = {"appProtocol": "kubernetes.io/h2c"} if options.tls_ca is None else {}
    made = body(
        "v1",
        "Service",
        name,
        options,
        {
            "selector": {"statefulset.kubernetes.io/pod-name": name},
            "ports": [{"name": "grpc", "port": options.picker_port} | plain],
        },
    )
    return Manifest("One kvpicker process by itself, for the access log.", made)


def _proxy(options: ManifestOptions) -> Manifest:
    sinks = [
        {"type": "ALS", "als": {"type": "HTTP", "logName": "kvpicker", "backendRefs": [_picker(options, number)]}}
        for number in range(options.replicas)
    ]
    spec: Body = {"telemetry": {"accessLog": {"settings": [{"sinks": sinks}]}}}
    if options.tls_client is not None:
        secret = {"kind": "Secret", "name": options.tls_client, "namespace": options.namespace}
        spec["backendTLS"] = {"clientCertificateRef": secret}
    return Manifest(
        "The access log goes to each kvpicker process, since each must see every outcome: status, timings, the engine"
        " that served. Nothing of an answer passes through kvpicker. Add your own sinks here; this replaces the default"
        " log on standard output.",
        body(API, "EnvoyProxy", options.gateway, options, spec),
    )


def _picker(options: ManifestOptions, number: int | None = None) -> Body:
    name = options.picker if number is None else f"{options.picker}-{number}"
    return {"group": "", "kind": "Service", "name": name, "port": options.picker_port}


def _client_policy(options: ManifestOptions) -> Manifest:
    spec = {
        "targetRefs": [parent(options)],
        "headers": {"earlyRequestHeaders": {"remove": list(STRIPPED)}},
        "connection": {"bufferLimit": _quantity(options.body_limit)},
    }
    return Manifest(
        "Clients must neither name engines nor steer them: what they write into these headers is removed before"
        " kvpicker writes there. bufferLimit is how much of a body kvpicker sees; longer ones go on whole.",
        body(API, "ClientTrafficPolicy", options.gateway, options, spec),
    )


def _backend_policy(options: ManifestOptions) -> Manifest:
    spec = {
        "targetRefs": [_route(options)],
        "loadBalancer": {
            "type": "LeastRequest",
            "endpointOverride": {"extractFrom": [{"header": DESTINATION}]},
        },
        "circuitBreaker": _no_limits(),
        "retry": {"numRetries": options.retries, "retryOn": {"triggers": ["connect-failure", "refused-stream"]}},
        "timeout": {"http": {"requestTimeout": "0s", "connectionIdleTimeout": "4s"}},
    }
    return Manifest(
        "Envoy goes to the engine that kvpicker names, on a retry to the next on its list, and without a name to the"
        " one with the fewest requests. Only what was not sent is repeated: with 5xx or reset, generation would run"
        " twice. Envoy's default of 1,024 requests would refuse what kvpicker admitted. 4 s: below the 5 s after which"
        " uvicorn closes idle connections.",
        body(API, "BackendTrafficPolicy", options.gateway, options, spec),
    )


def _extension_policy(options: ManifestOptions) -> Manifest:
    processor = {
        "backendRefs": [_picker(options)],
        "backendSettings": {"circuitBreaker": _no_limits()},
        "processingMode": {"request": {"body": "BufferedPartial"}},
        "messageTimeout": _duration(options.message_timeout),
        "failOpen": options.failure_mode == "open",
        "metadata": {"writableNamespaces": [LB_NAMESPACE, KVPICKER_NAMESPACE]},
    }
    spec = {"targetRefs": [_route(options)], "extProc": [processor]}
    meaning = (
        "failOpen: while kvpicker is away, Envoy chooses."
        if options.failure_mode == "open"
        else "Without failOpen requests are refused while kvpicker is away."
    )
    if options.tls_ca is None:
        meaning += " Plain HTTP/2: for TLS give kvpicker a certificate and render this with --tls-ca and --tls-name."
    return Manifest(
        "kvpicker sees headers and body of each request, of a long body the beginning. The metadata carries its"
        f" decision into the access log. {meaning}",
        body(API, "EnvoyExtensionPolicy", options.gateway, options, spec),
    )


def _tls_policy(options: ManifestOptions) -> Manifest:
    names = [options.picker, *(f"{options.picker}-{number}" for number in range(options.replicas))]
    spec = {
        "targetRefs": [{"group": "", "kind": "Service", "name": name} for name in names],
        "validation": {
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": options.tls_ca}],
            "hostname": options.tls_name,
        },
    }
    return Manifest(
        "TLS to kvpicker, for exchanges and access logs alike: its certificate must be of the authority in this"
        " ConfigMap (ca.crt), and for this name. Envoy Gateway before 1.6 knows the object as v1alpha3.",
        body(f"{GATEWAY_API}/v1", "BackendTLSPolicy", options.picker, options, spec),
    )


def _route(options: ManifestOptions) -> Body:
    return {"group": GATEWAY_API, "kind": "HTTPRoute", "name": options.gateway}


def _no_limits() -> Body:
    return {"maxConnections": NO_LIMIT, "maxPendingRequests": NO_LIMIT, "maxParallelRequests": NO_LIMIT}


def _duration(seconds: float) -> str:
    """Spell a duration as Gateway API takes it."""
    whole, rest = divmod(max(1, round(seconds * 1000)), 1000)
    return f"{whole}s" * (whole > 0) + f"{rest}ms" * (rest > 0)


def _quantity(size: int) -> str:
    mebibytes, rest = divmod(size, 1024 * 1024)
    return f"{mebibytes}Mi" if mebibytes and not rest else str(size)
