"""TLS from Envoy to the kvpicker processes: verified, mutual, or in blind trust."""

from __future__ import annotations

import ipaddress
from pathlib import PurePath
from typing import Any, Final

import betterproto2
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from ext_proc.bootstrap.options import EnvoyOptions
from ext_proc.bootstrap.typed import packed
from ext_proc.core.errors import ConfigError

AUTHORITIES: Final = "kvpicker_authorities"
CLIENT: Final = "kvpicker_client"
"""Names of the secrets."""

_SECRET: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  a type


def transport_socket(options: EnvoyOptions) -> core.TransportSocket | None:
    """Return what encrypts connections to the processors; None if nothing does."""
    if not options.is_encrypted:
        return None
    common = tls.CommonTlsContext(alpn_protocols=["h2"])
    if options.tls_client is not None:
        if options.tls_secrets is None:
            common.tls_certificates = [_client(options.tls_client)]
        else:
            common.tls_certificate_sds_secret_configs = [_from_file(CLIENT, options.tls_secrets)]
    if options.tls_ca is not None:
        _verify(common, options)
    name = options.tls_name or ""
    context = tls.UpstreamTlsContext(common_tls_context=common, sni="" if _is_ip(name) else name)
    return core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=packed(context))


def secrets(options: EnvoyOptions) -> dict[str, list[dict[str, Any]]]:
    """Return what the files of `tls_secrets` hold, by their names: one secret each, since Envoy takes no more.

    Raises ConfigError if there are to be none.
    """
    if options.tls_secrets is None:
        raise ConfigError("missing; say in which folder of Envoy's machine they will be", path="tls_secrets")
    made = []
    if options.tls_ca is not None:
        trusted = _trusted(options.tls_ca)
        # Mounted secrets are replaced by a new link in their folder.
        trusted.watched_directory = core.WatchedDirectory(path=str(PurePath(options.tls_ca).parent))
        made.append(tls.Secret(name=AUTHORITIES, validation_context=trusted))
    if options.tls_client is not None:
        pair = _client(options.tls_client)
        pair.watched_directory = core.WatchedDirectory(path=options.tls_client)
        made.append(tls.Secret(name=CLIENT, tls_certificate=pair))
    return {
        f"{secret.name}.yaml": [{"@type": _SECRET, **secret.to_dict(casing=betterproto2.Casing.SNAKE)}]
        for secret in made
    }


def _verify(common: tls.CommonTlsContext, options: EnvoyOptions) -> None:
    """Let only a certificate of the authorities do, and only for the name."""
    ca, name = options.tls_ca or "", options.tls_name or ""
    kind = tls.SubjectAltNameMatcherSanType.IP_ADDRESS if _is_ip(name) else tls.SubjectAltNameMatcherSanType.DNS
    names = [tls.SubjectAltNameMatcher(san_type=kind, matcher=matcher.StringMatcher(exact=name))]
    if options.tls_secrets is None:
        common.validation_context = _trusted(ca)
        common.validation_context.match_typed_subject_alt_names = names
    else:
        common.combined_validation_context = tls.CommonTlsContextCombinedCertificateValidationContext(
            default_validation_context=tls.CertificateValidationContext(match_typed_subject_alt_names=names),
            validation_context_sds_secret_config=_from_file(AUTHORITIES, options.tls_secrets),
        )


def _trusted(path: str) -> tls.CertificateValidationContext:
    return tls.CertificateValidationContext(trusted_ca=core.DataSource(filename=path))


def _client(folder: str) -> tls.TlsCertificate:
    certificate, key = (str(PurePath(folder, name)) for name in ("tls.crt", "tls.key"))
    return tls.TlsCertificate(
        certificate_chain=core.DataSource(filename=certificate), private_key=core.DataSource(filename=key)
    )


def _from_file(name: str, folder: str) -> tls.SdsSecretConfig:
    source = core.PathConfigSource(
        path=str(PurePath(folder, f"{name}.yaml")), watched_directory=core.WatchedDirectory(path=folder)
    )
    return tls.SdsSecretConfig(
        name=name,
        sds_config=core.ConfigSource(resource_api_version=core.ApiVersion.V3, path_config_source=source),
    )


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
