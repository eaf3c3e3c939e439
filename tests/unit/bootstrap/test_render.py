"""The rendered configurations equal the goldens, and a real Envoy takes them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.bootstrap import EnvoyOptions, render, to_yaml
from ext_proc.bootstrap.binary import find_envoy
from ext_proc.bootstrap.command import add_arguments, check, run
from ext_proc.bootstrap.options import PROFILES
from ext_proc.bootstrap.versions import NEWEST, OLDEST
from ext_proc.core.errors import ConfigError
from ext_proc.core.names import GATEWAY_HEADERS, LEGACY_NAMES, OBJECTIVE
from tests.envoys.builds import binary_of, found_version

GOLDENS = sorted(Path(__file__).parents[3].joinpath("envoy").glob("*.yaml"))


def rendered(command: str, tmp_path: Path, *more: str) -> tuple[int, str]:
    """Exit code and output of a `kvpicker envoy-config` command."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    file = tmp_path / "envoy.yaml"
    arguments = shlex.split(command)[2:]
    code = run(parser.parse_args([*arguments, *more, "--output", str(file)]))
    return code, file.read_text(encoding="utf-8")


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name)
def test_golden(golden: Path, tmp_path: Path) -> None:
    """The command in a golden's first line renders that golden."""
    text = golden.read_text(encoding="utf-8")
    command = text.splitlines()[0].removeprefix("# Rendered by: ")
    assert rendered(command, tmp_path) == (0, text)


@pytest.mark.envoy
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name)
def test_golden_is_valid(golden: Path, tmp_path: Path) -> None:
    """The Envoy that is found takes each golden, rendered for its version if it is an older one."""
    command = golden.read_text(encoding="utf-8").splitlines()[0].removeprefix("# Rendered by: ")
    older = [] if found_version() == NEWEST else ["--envoy-version", found_version()]
    assert rendered(command, tmp_path, "--check", *older)[0] == 0


@pytest.mark.envoy
@pytest.mark.oldest_envoy
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name)
def test_golden_is_valid_for_the_oldest(golden: Path, tmp_path: Path) -> None:
    """The oldest Envoy takes each golden that is rendered for it."""
    binary = binary_of(OLDEST)
    if not binary.exists():
        pytest.skip("`make oldest-envoy` installs it")
    command = golden.read_text(encoding="utf-8").splitlines()[0].removeprefix("# Rendered by: ")
    code, _ = rendered(command, tmp_path, "--envoy-version", OLDEST, "--check", "--envoy", str(binary))
    assert code == 0


def test_goldens_exist() -> None:
    """There is a golden per profile and way of failing, one that shows the first tokens, one for an older Envoy."""
    pairs = {f"{profile}{mode}.yaml" for profile in PROFILES for mode in ("", "-fail-closed")}
    assert {path.name for path in GOLDENS} == pairs | {"lean-first-token.yaml", "lean-envoy-1.36.yaml"}


VARIATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "unix sockets": {"processors": ("unix:/run/a.sock", "unix:/run/b.sock"), "admin": "unix:/run/admin.sock"},
    "names": {"processors": ("kvpicker-0.kvpicker:9002", "kvpicker-1.kvpicker:9002")},
    "ipv6": {"listen": "[::1]:8080", "endpoints": ("[fd00::10]:8000",)},
    "no admin": {"admin": None},
    "sessions": {"session_header": "x-thread", "session_cookie": "chat_id"},
    "waiting": {"tenant_header": "X-Tenant", "priority_header": "x-priority", "max_message_timeout": 3600.0},
    "no waiting": {"max_message_timeout": 0.0},
    "first token": {"first_token": True, "failure_mode": "closed"},
    "buffered": {"profile": "buffered", "first_token": True, "session_cookie": "chat_id"},
    "duplex": {"profile": "duplex", "retries": 1, "tenant_header": "x-tenant"},
    "encrypted": {"tls_unverified": True, "tls_name": "kvpicker.inference.svc"},
    "certificates elsewhere": {"tls_ca": "/nowhere/ca.crt", "tls_name": "x", "tls_client": "/nowhere"},
    "small": {"body_limit": 1000, "retries": 0, "log_buffer": 1, "message_timeout": 0.2},
}


@pytest.mark.envoy
@pytest.mark.parametrize("options", VARIATIONS.values(), ids=VARIATIONS.keys())
def test_variation_is_valid(options: dict[str, Any]) -> None:
    """A real Envoy takes every kind of option."""
    check(EnvoyOptions(envoy_version=found_version(), **options), find_envoy())


def test_yaml_is_the_rendered_data() -> None:
    """The YAML holds the rendered data in the same order, without anchors."""
    text = to_yaml(EnvoyOptions())
    assert list(yaml.safe_load(text)) == list(render(EnvoyOptions()))
    assert yaml.safe_load(text) == render(EnvoyOptions())
    assert "&id" not in text


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no processor": ({"processors": ()}, "processors: name at least one kvpicker process"),
    "twice": ({"processors": ("a:1", "a:1")}, "processors: an address stands twice"),
    "mode": ({"failure_mode": "ajar"}, "failure_mode: `open` or `closed` expected, not 'ajar'"),
    "profile": ({"profile": "fat"}, "profile: one of lean, buffered, duplex expected, not 'fat'"),
    "version": (
        {"envoy_version": "1.35"},
        "envoy_version: 1.36 to 1.40 expected, not '1.35'; a later Envoy takes what 1.40 takes",
    ),
    "first token": (
        {"profile": "duplex", "first_token": True},
        "first_token: the profile duplex shows whole answers anyhow; leave it out",
    ),
    "two ways": (
        {"tls_ca": "/ca", "tls_name": "x", "tls_unverified": True},
        "tls_unverified: who verifies by `tls_ca`",
    ),
    "any name": ({"tls_ca": "/ca"}, "tls_name: missing; without a name any certificate of the authority would do"),
    "plain": ({"tls_client": "/client"}, "tls_client: nothing is encrypted; write `tls_ca`, or `tls_unverified`"),
    "socket": (
        {"tls_unverified": True, "processors": ("unix:/run/kvpicker.sock",)},
        "processors: kvpicker does not encrypt what passes through Unix sockets",
    ),
    "no secrets": ({"tls_unverified": True, "tls_secrets": "/s"}, "tls_secrets: there is nothing to keep there"),
    "no port": ({"listen": "10.0.0.1"}, "listen: '10.0.0.1' is neither host:port nor unix:/path"),
    "large port": ({"listen": "10.0.0.1:65536"}, "listen: '10.0.0.1:65536' is neither host:port nor unix:/path"),
    "bare ipv6": ({"listen": "::1:80"}, "listen: '::1:80': put an IPv6 address in brackets"),
    "mixed": (
        {"endpoints": ("engines:80", "10.0.0.1:80")},
        "endpoints: '10.0.0.1:80' stands beside a host name; write addresses or names",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(options: dict[str, Any], message: str) -> None:
    """An option that cannot work is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        render(EnvoyOptions(**options))
    assert str(caught.value).startswith(message)


def cluster(name: str, options: EnvoyOptions) -> dict[str, Any]:
    """One cluster of the rendered configuration."""
    found: dict[str, Any] = next(
        entry for entry in render(options)["static_resources"]["clusters"] if entry["name"] == name
    )
    return found


def test_discovery_by_kind_of_address() -> None:
    """Processors named by host are looked up; numeric ones are static."""
    named = EnvoyOptions(processors=("kvpicker:9002", "127.0.0.1:9002"))
    assert cluster("kvpicker_processors", named)["type"] == "STRICT_DNS"
    assert cluster("kvpicker_access_log_0", named)["type"] == "STRICT_DNS"
    assert cluster("kvpicker_access_log_1", named)["type"] == "STATIC"
    engines = EnvoyOptions(endpoints=("engines:8000",))
    assert cluster("kvpicker_endpoints", engines)["type"] == "STRICT_DNS"


def processing_mode(chain: list[dict[str, Any]]) -> dict[str, str]:
    """What the ext_proc filter of a chain sends to the processor."""
    found = next(entry for entry in chain if entry["name"] == "envoy.filters.http.ext_proc")
    mode: dict[str, str] = found["typed_config"]["processing_mode"]
    return mode


@pytest.mark.parametrize("shown", [False, True])
def test_answers_are_shown_on_demand_only(*, shown: bool) -> None:
    """The option concerns ordinary requests; an upgraded connection has no first token."""
    options = EnvoyOptions(first_token=shown)
    chain = render(options)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    modes = [processing_mode(filters) for filters in (chain["http_filters"], chain["upgrade_configs"][0]["filters"])]
    assert [mode.get("response_body_mode", "NONE") for mode in modes] == ["STREAMED" if shown else "NONE", "NONE"]
    assert {mode["response_header_mode"] for mode in modes} == {"SKIP"}


@pytest.mark.parametrize(
    ("profile", "request_body", "response_body", "others"),
    [
        ("lean", "BUFFERED_PARTIAL", "NONE", {"request_header_mode": "SEND", "response_header_mode": "SKIP"}),
        ("buffered", "BUFFERED", "NONE", {"request_header_mode": "SEND", "response_header_mode": "SKIP"}),
        (
            "duplex",
            "FULL_DUPLEX_STREAMED",
            "FULL_DUPLEX_STREAMED",
            {f"{way}_{part}_mode": "SEND" for way in ("request", "response") for part in ("header", "trailer")},
        ),
    ],
)
def test_profiles_differ_in_what_is_shown(
    profile: Any, request_body: str, response_body: str, others: dict[str, str]
) -> None:
    """Of an upgraded connection nothing but the head is shown in any."""
    manager = render(EnvoyOptions(profile=profile))["static_resources"]["listeners"][0]["filter_chains"][0]
    chain = manager["filters"][0]["typed_config"]
    mode = processing_mode(chain["http_filters"])
    assert mode.pop("request_body_mode") == request_body
    assert mode.pop("response_body_mode", "NONE") == response_body
    assert mode == others
    upgraded = {"request_header_mode": "SEND", "response_header_mode": "SKIP"}
    assert processing_mode(chain["upgrade_configs"][0]["filters"]) == upgraded


def test_one_access_log_per_processor() -> None:
    """Each processor has a log of its own, so that each sees every entry."""
    options = EnvoyOptions(processors=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    chain = render(options)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    logs = [
        log["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        for log in chain["typed_config"]["access_log"]
    ]
    assert logs == [f"kvpicker_access_log_{number}" for number in range(3)]


def told(**options: Any) -> list[str]:
    """Return the headers of requests that kvpicker is told."""
    manager = render(EnvoyOptions(**options))["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    chain = manager["typed_config"]["http_filters"]
    config = next(each["typed_config"] for each in chain if each["name"] == "envoy.filters.http.ext_proc")
    return [pattern["exact"] for pattern in config["forward_rules"]["allowed_headers"]["patterns"]]


def test_headers_that_a_client_could_write_are_passed_on_when_asked_for() -> None:
    """None of the protocol's by default; all by one option; one of two names by both, none twice."""
    assert not set(told()) & set(GATEWAY_HEADERS)
    assert set(told(gateway_headers=True)) - set(told()) == set(GATEWAY_HEADERS)
    labelled = {"tenant_header": "X-Tenant", "priority_header": OBJECTIVE}
    assert set(told(**labelled)) - set(told()) == {"x-tenant", OBJECTIVE, LEGACY_NAMES[OBJECTIVE]}
    every = told(gateway_headers=True, **labelled)
    assert len(set(every)) == len(every)
