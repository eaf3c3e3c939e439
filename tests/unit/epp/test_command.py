"""`kvpicker epp`: what its flags make of a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from ext_proc.assembly import exchange_policy
from ext_proc.cli import main
from ext_proc.config import Config, TlsConfig
from ext_proc.core.errors import ConfigError
from ext_proc.core.exchange_policy import Objectives
from ext_proc.epp.command import IGNORED, add_arguments, configured
from ext_proc.sources import certificates
from tests.certificates import Authority

FILE = "pools: {chat: {endpoints: ['10.0.0.11:8000']}}\n"


def flags(*arguments: str) -> argparse.Namespace:
    """Read flags."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def made(*arguments: str, namespace: str = "") -> Config:
    """Return the configuration that flags make."""
    return configured(flags(*arguments), namespace)[0]


def test_a_name_is_enough() -> None:
    """With the name of an InferencePool alone, everything is where gateways look for it."""
    config = made("--pool-name", "vllm")
    assert config.listen == ("0.0.0.0:9002",)
    assert config.health_listen == ("0.0.0.0:9003",)
    assert config.admin.listen == "0.0.0.0:9090"
    assert config.admin.pages == "loopback"
    assert config.tls == TlsConfig()
    assert config.drain_s + config.passing_s < 30
    assert config.envoy.named == config.envoy.named_in_duplex == 1
    pool = config.pools["vllm"].kubernetes
    assert pool is not None
    assert (pool.namespace, pool.inference_pool) == ("default", "vllm")


def test_a_selector_takes_the_place_of_an_inference_pool() -> None:
    """Labels and ports are all that is needed to know the endpoints; the namespace is the pod's."""
    selector = "app=vllm,tier in (a, b),!canary"
    config = made("--endpoint-selector", selector, "--endpoint-target-ports", "8000,8001,8000", namespace="team")
    (pool,) = config.pools.values()
    assert pool.kubernetes is not None
    assert (pool.kubernetes.namespace, pool.kubernetes.selector) == ("team", selector)
    assert pool.kubernetes.target_ports == (8000, 8001)
    assert config.tls == TlsConfig()


def test_without_an_inference_pool_there_are_no_objectives() -> None:
    """Then the header names nothing, and a client cannot make up a rank by a number either."""
    config = made("--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000")
    priority = exchange_policy(config, objectives=Objectives()).priority
    assert [priority(text) for text in ("interactive", "5", "-5", "")] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [((), "", "default"), ((), "team", "team"), (("--pool-namespace", "mine"), "team", "mine")],
)
def test_the_namespace_may_come_from_the_pod(arguments: tuple[str, ...], variable: str, expected: str) -> None:
    """The flag goes before the variable that charts set, and that before `default`."""
    pool = made("--pool-name", "vllm", *arguments, namespace=variable).pools["vllm"].kubernetes
    assert pool is not None
    assert pool.namespace == expected


def test_what_a_chart_passes_is_taken() -> None:
    """The arguments that the charts of gateways pass to their own picker make a configuration, in either notation."""
    config = made(
        *("--pool-name", "vllm", "--pool-namespace", "ns", "--pool-group", "inference.networking.k8s.io"),
        *("--zap-encoder", "json", "--ha-enable-leader-election", "--grpc-health-port", "9103", "-v=4", "--v", "2"),
        *("--tracing=false", "--metrics-endpoint-auth=false", "--secure-serving=false", "--grpc-port=9102"),
        *("--kv-cache-usage-percentage-metric", "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
        *("--lora-info-metric", "", "--metrics-port", "9190", "--drain-timeout", "1m30s"),
    )
    assert (config.listen, config.health_listen) == (("0.0.0.0:9102",), ("0.0.0.0:9103",))
    assert (config.admin.listen, config.tls, config.drain_s) == ("0.0.0.0:9190", None, 90.0)


def test_a_file_goes_before_the_preset_and_flags_before_the_file(tmp_path: Path) -> None:
    """Each part is completed field by field, and a reload reads the file by the same rules."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(FILE + "listen: ['127.0.0.1:7000']\nadmin: {token_file: /t}\nenvoy: {fallbacks: 4}\ntls: null\n")
    config, watched, read = configured(flags("--config", str(path)), "")
    assert watched == path
    assert (config.listen, config.tls, list(config.pools)) == (("127.0.0.1:7000",), None, ["chat"])
    assert (config.admin.listen, config.admin.token_file) == ("0.0.0.0:9090", "/t")
    assert (config.envoy.fallbacks, config.envoy.data_plane) == (4, "original-dst")
    more = ("--grpc-port", "0", "--pool-name", "vllm", "--secure-serving", "--data-plane", "override-host")
    config, _, read = configured(flags("--config", str(path), *more), "")
    assert (config.listen, config.tls, sorted(config.pools)) == (("0.0.0.0:0",), TlsConfig(), ["chat", "vllm"])
    assert config.envoy.named == 5
    path.write_text(FILE + "pools_: {}\n")
    with pytest.raises(ConfigError, match=r"k\.yaml:2: pools_: unknown field"):
        read(path.read_text(), "k.yaml")
    assert read("# nothing yet\n", "k.yaml").listen == ("0.0.0.0:0",)


def test_a_folder_holds_the_certificate(tmp_path: Path) -> None:
    """As other pickers have it: `tls.crt` and `tls.key`."""
    config = made("--pool-name", "vllm", "--cert-path", "/certs", "--client-ca", "/ca.crt")
    assert config.tls == TlsConfig(certificate="/certs/tls.crt", key="/certs/tls.key", client_ca="/ca.crt")


def test_the_configuration_of_another_picker_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chart that mounts it passes it too; kvpicker says that it changes nothing."""
    path = tmp_path / "plugins.yaml"
    path.write_text("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n")
    config, watched, _ = configured(flags("--pool-name", "vllm", "--config-file", str(path)), "")
    assert (watched, list(config.pools)) == (None, ["vllm"])
    assert "it configures another picker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--pool-name: missing; name the InferencePool, or give pools in --config"),
        (("--pool-name", "x", "--pool-group", "x-k8s.io"), "--pool-group: kvpicker reads InferencePools of the group"),
        (("--endpoint-selector", "app=vllm"), "--endpoint-target-ports: missing; --endpoint-selector and"),
        (("--endpoint-target-ports", "8000"), "--endpoint-selector: missing; --endpoint-selector and"),
        (
            ("--pool-name", "x", "--endpoint-selector", "a=b", "--endpoint-target-ports", "1"),
            "--endpoint-selector: an InferencePool has a selector of its own; remove one",
        ),
        (
            ("--endpoint-selector", "app=vllm=1", "--endpoint-target-ports", "1"),
            "pools.endpoints.kubernetes.selector: `app=vllm=1` selects no pods",
        ),
        (("--pool-name", "Not A Name"), "is not a name"),
        (("--pool-name", "x", "--plaintext", "--cert-path", "/c"), "--plaintext: this goes with no other flag"),
        (("--pool-name", "x", "--config", "/nowhere"), "/nowhere: cannot be read"),
        (("--pool-name", "x", "--address", "localhost"), "--address: 'localhost' is not an IP address"),
        (("--pool-name", "x", "--address", "::"), "--address: '::' is not an IP address; IPv6 in brackets"),
    ],
)
def test_what_cannot_be_used_is_said(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with status 2 and a message that says how to mend it."""
    assert main(["epp", "--check", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--grpc-port", "70000"),
        ("--secure-serving=maybe",),
        ("--drain-timeout", "soon"),
        ("--pool", "x"),
        ("--endpoint-target-ports", "8000,"),
    ],
)
def test_flags_that_mean_nothing_are_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a value nor an abbreviation is guessed."""
    with pytest.raises(SystemExit) as ended:
        main(["epp", *arguments])
    assert ended.value.code == 2
    assert arguments[0].partition("=")[0] in capsys.readouterr().err


def test_check_says_what_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags that are taken only since charts pass them are named with the reason."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(FILE)
    Authority().issue("picker").write(tmp_path)
    assert main(["epp", "--check", "--config", str(path), "--cert-path", str(tmp_path), "--tracing=false"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "good\n"
    assert printed.err == f"kvpicker: --tracing changes nothing: {IGNORED['tracing']}\n"


def test_check_says_which_flags_others_leave_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chart may pass them, so they are no error; but none of them is ignored without a word."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(
        FILE + "listen: ['127.0.0.1:7000']\nhealth_listen: []\nadmin: {listen: '127.0.0.1:7001', pages: all}\n"
    )
    words = ("--pool-namespace", "ns", "--address", "127.0.0.2", "--secure-serving=false", "--cert-path", "/c")
    assert main(["epp", "--check", "--config", str(path), *words, "--client-ca", "/ca"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in told] == ["--cert-path", "--client-ca", "--pool-namespace", "--address"]
    used = ("--pool-name", "vllm", "--pool-namespace", "ns", "--address", "127.0.0.2", "--secure-serving=false")
    assert main(["epp", "--check", "--config", str(path), *used, "--grpc-port", "7002"]) == 0
    assert capsys.readouterr().err == ""


def test_check_looks_at_the_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the start would stumble over is found before."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(FILE)
    assert main(["epp", "--check", "--config", str(path), "--cert-path", str(tmp_path)]) == 2
    assert "tls.crt cannot be read" in capsys.readouterr().err
    find: Any = lambda _name: None  # noqa: E731
    monkeypatch.setattr(certificates, "find_spec", find)
    assert main(["epp", "--check", "--config", str(path)]) == 2
    assert "pip install 'kvpicker[tls]'" in capsys.readouterr().err
