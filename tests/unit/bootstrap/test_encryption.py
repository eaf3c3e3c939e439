"""TLS in rendered configurations: what is rendered, and that a real Envoy takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.bootstrap import EnvoyOptions, render
from ext_proc.bootstrap.binary import find_envoy
from ext_proc.bootstrap.command import check
from ext_proc.bootstrap.document import secrets_yaml
from ext_proc.bootstrap.encryption import AUTHORITIES, CLIENT
from ext_proc.bootstrap.options import PROFILES
from ext_proc.core.errors import ConfigError
from tests.certificates import Authority
from tests.envoys.builds import found_version

VERIFIED: dict[str, Any] = {"tls_ca": "/tls/ca.crt", "tls_name": "kvpicker.test"}
MUTUAL = VERIFIED | {"tls_client": "/client"}


def sockets(**options: Any) -> dict[str, dict[str, Any] | None]:
    """Return the TLS of each cluster by the cluster's name."""
    clusters = render(EnvoyOptions(**options))["static_resources"]["clusters"]
    return {each["name"]: each.get("transport_socket", {}).get("typed_config") for each in clusters}


def common(**options: Any) -> dict[str, Any]:
    """Return what TLS to the processors consists of."""
    context = sockets(**options)["kvpicker_processors"]
    assert context is not None
    found: dict[str, Any] = context["common_tls_context"]
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_all_that_goes_to_kvpicker_is_encrypted(profile: str) -> None:
    """Exchanges, health checks and access logs, in each profile; engines are spoken to as before."""
    found = sockets(profile=profile, processors=("a:1", "b:1"), **VERIFIED)
    assert found.pop("kvpicker_endpoints") is None
    assert len(found) == 3
    assert all(context is not None and context["sni"] == "kvpicker.test" for context in found.values())
    assert set(sockets(profile=profile).values()) == {None}


@pytest.mark.parametrize(("name", "kind", "sni"), [("x.test", "DNS", "x.test"), ("fd00::1", "IP_ADDRESS", None)])
def test_the_name_is_verified(name: str, kind: str, sni: str | None) -> None:
    """A certificate for another name will not do; an IP is no name to be asked for."""
    options = VERIFIED | {"tls_name": name}
    (matcher,) = common(**options)["validation_context"]["match_typed_subject_alt_names"]
    assert matcher == {"san_type": kind, "matcher": {"exact": name}}
    context = sockets(**options)["kvpicker_processors"]
    assert context is not None
    assert context.get("sni") == sni


def test_blind_trust_verifies_nothing() -> None:
    """Whoever asks for it gets encryption, and HTTP/2 in it."""
    assert common(tls_unverified=True) == {"alpn_protocols": ["h2"]}


def test_certificates_that_change_come_from_a_file() -> None:
    """Names are verified in either case; files are named in one place only."""
    made = common(**MUTUAL, tls_secrets="/envoy/secrets")
    combined = made["combined_validation_context"]
    default = combined["default_validation_context"]
    assert default["match_typed_subject_alt_names"][0]["matcher"] == {"exact": "kvpicker.test"}
    assert combined["validation_context_sds_secret_config"]["name"] == AUTHORITIES
    assert [each["name"] for each in made["tls_certificate_sds_secret_configs"]] == [CLIENT]
    assert "/tls/ca.crt" not in str(made)
    files = secrets_yaml(EnvoyOptions(**MUTUAL, tls_secrets="/envoy/secrets"), command="kvpicker x")
    assert {text.splitlines()[0] for text in files.values()} == {"# Rendered by: kvpicker x"}
    held = {name: yaml.safe_load(text)["resources"] for name, text in files.items()}
    (of_authorities,), (of_client,) = held[f"{AUTHORITIES}.yaml"], held[f"{CLIENT}.yaml"]
    assert of_authorities["validation_context"]["watched_directory"] == {"path": "/tls"}
    assert of_client["tls_certificate"]["private_key"] == {"filename": "/client/tls.key"}
    assert of_client["tls_certificate"]["watched_directory"] == {"path": "/client"}


def test_no_folder_no_secrets() -> None:
    """Secrets of a configuration that refers to none are an error that says so."""
    with pytest.raises(ConfigError, match="tls_secrets: missing; say in which folder"):
        secrets_yaml(EnvoyOptions(**MUTUAL))


@pytest.mark.envoy
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("by_file", [False, True])
def test_envoy_takes_it(tmp_path: Path, profile: str, *, by_file: bool) -> None:
    """Certificates included, which it loads when it checks."""
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    authority.issue("envoy").write(tmp_path / "client")
    options = {"tls_ca": f"{tmp_path}/ca.crt", "tls_name": "kvpicker.test", "tls_client": f"{tmp_path}/client"}
    if by_file:
        options["tls_secrets"] = str(tmp_path)
    made = EnvoyOptions(profile=profile, envoy_version=found_version(), **options)  # type: ignore[arg-type]
    if by_file:
        for name, text in secrets_yaml(made).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
    check(made, find_envoy())
