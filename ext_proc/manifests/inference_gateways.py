"""Envoy AI Gateway and kgateway: an InferencePool, whose picker both reach by unverified TLS without being told."""

from __future__ import annotations

from ext_proc.core.errors import ConfigError
from ext_proc.manifests.objects import (
    Body,
    Manifest,
    body,
    gateway,
    http_route,
    inference_pool,
    parent,
    pool_reference,
)
from ext_proc.manifests.options import ManifestOptions

_CLOSED = (
    "FailClose is all there is: this gateway goes where the header {header} points, and without kvpicker nobody would"
    " overwrite what clients write there. TLS needs no setting: this gateway speaks it and verifies nothing."
)


def envoy_ai_gateway(options: ManifestOptions) -> list[Manifest]:
    """All objects for Envoy AI Gateway; raises ConfigError without a model."""
    if not options.models:
        raise ConfigError("missing; Envoy AI Gateway routes by model, so name each that the pool serves", path="model")
    return [gateway(options, "eg"), _ai_route(options), _pool(options)]


def kgateway(options: ManifestOptions) -> list[Manifest]:
    """All objects for kgateway."""
    return [gateway(options, "kgateway"), http_route(options, pool_reference(options)), _pool(options)]


def _pool(options: ManifestOptions) -> Manifest:
    return inference_pool(options, "FailClose", _CLOSED.format(header="x-gateway-destination-endpoint"))


def _ai_route(options: ManifestOptions) -> Manifest:
    spec: Body = {
        "parentRefs": [parent(options)],
        "rules": [
            {
                "matches": [_model(name) for name in options.models],
                "backendRefs": [pool_reference(options)],
                "timeouts": {"request": "0s"},
            }
        ],
    }
    return Manifest(
        "Requests for these models go to the engines; the gateway takes the model from the body. One InferencePool per"
        " rule. No time limit: Envoy's 15 s would cut generations. Envoy AI Gateway before 0.6 knows the object as"
        " v1alpha1.",
        body("aigateway.envoyproxy.io/v1beta1", "AIGatewayRoute", options.gateway, options, spec),
    )


def _model(name: str) -> Body:
    return {"headers": [{"type": "Exact", "name": "x-ai-eg-model", "value": name}]}
