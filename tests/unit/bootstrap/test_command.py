"""The command `kvpicker envoy-config`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from ext_proc.bootstrap.command import add_arguments, run
from ext_proc.core.errors import ConfigError
from tests.envoys.builds import found_version


def call(*arguments: str) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --output the configuration goes to stdout, headed by the command that renders it again."""
    flags = ("--first-token", "--gateway-headers")
    assert call("--processor", "unix:/run/kv picker.sock", "--retries", "1", "--admin", "none", *flags) == 0
    first = capsys.readouterr().out.splitlines()[0]
    command = "kvpicker envoy-config --profile lean --processor 'unix:/run/kv picker.sock' --admin none --retries 1"
    assert first == f"# Rendered by: {command} --first-token --gateway-headers"


def test_profile_and_version_are_spelt(capsys: pytest.CaptureFixture[str]) -> None:
    """The command of an older Envoy's configuration renders it again, and so do retries that are asked for."""
    words = "--profile duplex --envoy-version 1.37 --retries 2"
    assert call(*words.split()) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"# Rendered by: kvpicker envoy-config {words}"


def test_first_token_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    """The off form renders what no form renders."""
    assert call("--first-token", "--no-first-token") == call() == 0
    without, default = capsys.readouterr().out.split("# Rendered by: ")[1:]
    assert without == default


def test_what_may_run_twice_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Paths replace the usual ones, `none` leaves all out, and the command says so again."""
    for words in (["--repeatable", "/v1/x", "--repeatable", "/y"], ["--repeatable", "none"]):
        assert call(*words) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[0].endswith(" ".join(words))
        assert (
            out.count("retry_on: connect-failure,refused-stream,reset-before-request,reset\n")
            == words.count("/v1/x") * 2
        )


def test_bad_option(tmp_path: Path) -> None:
    """An option that cannot be used is an error that names it, and nothing is written."""
    file = tmp_path / "envoy.yaml"
    with pytest.raises(ConfigError, match="listen: 'nowhere' is neither host:port nor unix:/path"):
        call("--listen", "nowhere", "--output", str(file))
    assert not file.exists()


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is not there is an error that names it."""
    with pytest.raises(ConfigError, match=r"--output: .*/nodir/envoy.yaml cannot be written: No such file"):
        call("--output", str(tmp_path / "nodir" / "envoy.yaml"))
    words = "--tls-ca /tls/ca.crt --tls-name kvpicker.ns.svc --tls-secrets /etc/envoy/secrets"
    with pytest.raises(ConfigError, match=r"--write-secrets: .*/nodir/kvpicker_authorities.yaml cannot be written"):
        call(*words.split(), "--write-secrets", str(tmp_path / "nodir"))


def test_tls_is_spelt_and_its_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What Envoy needs to follow certificates lies in a folder, each file headed as the configuration is."""
    words = "--tls-ca /tls/ca.crt --tls-name kvpicker.ns.svc --tls-client /tls --tls-secrets /etc/envoy/secrets"
    assert call(*words.split(), "--write-secrets", str(tmp_path)) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"# Rendered by: kvpicker envoy-config --profile lean {words}"
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["kvpicker_authorities.yaml", "kvpicker_client.yaml"]
    assert {file.read_text(encoding="utf-8").splitlines()[0] for file in files} == {first}
    assert call("--tls-unverified") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("--profile lean --tls-unverified")


@pytest.mark.envoy
def test_check_reports_envoys_complaint(tmp_path: Path) -> None:
    """--check fails with Envoy's own words, and nothing is written."""
    file = tmp_path / "envoy.yaml"
    with pytest.raises(ConfigError, match=r"Envoy refuses it: .*300\.0\.0\.1"):
        call("--listen", "300.0.0.1:80", "--envoy-version", found_version(), "--check", "--output", str(file))
    assert not file.exists()


@pytest.mark.parametrize(
    ("found", "hint"),
    [("1.36.4", "render for it with --envoy-version 1.36"), ("1.35.0", "1.36 to 1.40 are known"), ("1.40.0", "")],
)
def test_a_complaint_of_another_version_says_so(tmp_path: Path, found: str, hint: str) -> None:
    """An older Envoy lacks fields, and what it says of them does not help."""
    envoy = tmp_path / "envoy"
    envoy.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "envoy version: 1a/{found}/Clean" || (echo no; exit 1) >&2\n'
    )
    envoy.chmod(0o755)
    with pytest.raises(ConfigError, match="Envoy refuses it: no") as caught:
        call("--check", "--envoy", str(envoy))
    assert str(caught.value).endswith(hint)
    assert ("this Envoy is" in str(caught.value)) == bool(hint)


def test_what_is_no_envoy_checks_nothing() -> None:
    """Not even if it says yes to all."""
    with pytest.raises(ConfigError, match="an Envoy: its --version names none"):
        call("--check", "--envoy", "true")


def test_check_without_envoy() -> None:
    """--check with a missing binary says which."""
    with pytest.raises(ConfigError, match="no executable file '/nowhere/envoy'"):
        call("--check", "--envoy", "/nowhere/envoy")


def test_light_import() -> None:
    """Declaring the command does not import Envoy's typed messages."""
    code = "import sys, ext_proc.bootstrap; sys.exit('envoy_data_plane' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
