"""Istio: an InferencePool, and how TLS to its picker is spoken."""

from __future__ import annotations

from ext_proc.core.errors import ConfigError
from ext_proc.manifests.objects import (
    Body,
    Manifest,
    body,
    gateway,
    http_route,
    inference_pool,
    pool_reference,
    service_host,
)
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
    tls, why = _tls(options)
    spec = {"host": service_host(options), "trafficPolicy": {"tls": tls}}
    return Manifest(
        f"Istio speaks to the picker as to any Service. {why}",
        body("networking.istio.io/v1", "DestinationRule", options.picker, options, spec),
    )


def _tls(options: ManifestOptions) -> tuple[Body, str]:
    """Return how TLS is spoken, and what to say of it; raises ConfigError for authorities that Istio would not find."""
    if options.tls_ca is None:
        return (
            {"mode": "SIMPLE", "insecureSkipVerify": True},
            (
                "kvpicker makes itself a certificate at each start, which nobody can verify: encryption without proof"
                " of identity. For a certificate of yours (`tls.certificate`) render this with --tls-ca and --tls-name."
            ),
        )
    made = {"mode": "SIMPLE", "credentialName": options.tls_ca}
    why = f"Its certificate must be of the authority in the Secret {options.tls_ca} (ca.crt), and for this name."
    if options.tls_client is not None:
        if options.tls_ca not in {options.tls_client, f"{options.tls_client}-cacert"}:
            raise ConfigError(
                f"Istio looks for the authority in the client's Secret or in {options.tls_client}-cacert; name either",
                path="tls_ca",
            )
        made = {"mode": "MUTUAL", "credentialName": options.tls_client}
        why += f" The gateway proves itself by tls.crt and tls.key of the Secret {options.tls_client}."
    name = options.tls_name or ""
    return {**made, "sni": name, "subjectAltNames": [name]}, f"{why} The Secrets lie beside the Gateway."
