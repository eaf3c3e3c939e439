"""Istio: an InferencePool, and how TLS to its picker is spoken."""

from __future__ import annotations

from ext_proc.manifests.objects import Manifest, body, gateway, http_route, inference_pool, pool_reference, service_host
from ext_proc.manifests.options import ManifestOptions


def istio(options: ManifestOptions) -> list[Manifest]:
    """All objects for Istio."""
    mode, why = _failure_mode(options)
    return [
        gateway(options, "istio"),
        http_route(options, pool_reference(options)),
        inference_pool(options, mode, why),
        _destination_rule(options),
    ]


def _failure_mode(options: ManifestOptions) -> tuple[str, str]:
    if options.failure_mode == "open":
        return "FailOpen", "FailOpen: while kvpicker is away, Istio goes round robin among the engines."
    return "FailClose", "FailClose: while kvpicker is away, requests are refused."


def _destination_rule(options: ManifestOptions) -> Manifest:
    spec = {
        "host": service_host(options),
        "trafficPolicy": {"tls": {"mode": "SIMPLE", "insecureSkipVerify": True}},
    }
    return Manifest(
        "Istio speaks to the picker as to any Service. kvpicker makes itself a certificate at each start, which nobody"
        " can verify: encryption without proof of identity. With a certificate of yours (`tls.certificate`) remove"
        " insecureSkipVerify and name your authority in credentialName.",
        body("networking.istio.io/v1", "DestinationRule", options.picker, options, spec),
    )
