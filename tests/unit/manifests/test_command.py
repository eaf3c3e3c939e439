"""The command `kvpicker envoy-config` for gateways."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ext_proc.cli import main
from ext_proc.manifests import PROFILES

NEEDED = {"envoy-ai-gateway": ("--model", "m")}


def call(*words: str) -> int:
    """Run the command."""
    return main(["envoy-config", *words])


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_line_renders_the_same_again(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was chosen is spelt in the first line; what is the default is not."""
    chosen = {
        "istio": "--failure-mode closed --gateway g --namespace ns --selector a=b --selector c=d --target-port 1",
        "envoy-gateway": "--body-limit 1048576 --message-timeout 0.5 --replicas 3 --retries 1",
        "envoy-ai-gateway": "--model 'my model' --model b --pool p",
        "kgateway": "--gateway-class c --picker p --picker-port 1",
    }[profile]
    assert call("--profile", profile, *shlex.split(chosen)) == 0
    first = capsys.readouterr().out
    command = first.splitlines()[0].removeprefix("# Rendered by: kvpicker ")
    assert command == f"envoy-config --profile {profile} {chosen}"
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("profile", PROFILES)
def test_output(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--output writes what would have been printed."""
    words = ("--profile", profile, *NEEDED.get(profile, ()))
    assert call(*words) == 0
    printed = capsys.readouterr().out
    assert call(*words, "--output", str(tmp_path / "o.yaml")) == 0
    assert (tmp_path / "o.yaml").read_text("utf-8") == printed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--profile", "istio", "--listen", "0.0.0.0:80"), "--listen: the profile istio has no use for it"),
        (("--profile", "istio", "--check"), "--check: the profile istio has no use for it"),
        (("--profile", "istio", "--replicas", "3"), "--replicas: the profile istio has no use for it"),
        (("--profile", "kgateway", "--failure-mode", "closed"), "--failure-mode: the profile kgateway has no use"),
        (("--profile", "envoy-gateway", "--selector", "a=b"), "--selector: the profile envoy-gateway has no use"),
        (("--profile", "lean", "--pool", "p"), "--pool: the profile lean has no use for it"),
        (("--gateway-class", "c"), "--gateway-class: the profile lean has no use for it"),
        (("--profile", "envoy-ai-gateway"), "--model: missing"),
        (
            ("--profile", "istio", "--tls-client", "x"),
            "--tls-client: nothing is verified; name the authority by `--tls-ca`",
        ),
        (("--processor", "10.0.0.1"), "--processor: '10.0.0.1' is neither host:port nor unix:/path"),
        (("--endpoint", "engine"), "--endpoint: 'engine' is neither host:port nor unix:/path"),
        (("--tls-ca", "/ca.crt"), "--tls-name: missing; "),
        (("--retries", "-1"), "--retries: -1 is not between 0 and 100"),
        (("--body-limit", "0"), "--body-limit: 0 is not between 1 and"),
        (("--message-timeout", "-1"), "--message-timeout: -1 is not between 0.001 and 3600"),
        (("--max-message-timeout", "nan"), "--max-message-timeout: nan is not between 0 and 86400"),
        (("--profile", "istio", "--output", "/nodir/x"), "--output: /nodir/x cannot be written: No such file"),
    ],
)
def test_what_has_no_effect_is_refused(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that the profile would ignore is an error, for Envoys and gateways alike, and nothing is printed."""
    assert call(*words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"kvpicker: {complaint}")


def test_envoys_are_rendered_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """The profile of a plain Envoy is no gateway's."""
    assert call("--retries", "1") == 0
    assert capsys.readouterr().out.startswith("# Rendered by: kvpicker envoy-config --profile lean --retries 1\n")


def test_light_import() -> None:
    """Objects are rendered without Envoy's typed messages, which take half a second to import."""
    script = (
        "import sys; from ext_proc.cli import main; main(['envoy-config', '--profile', 'istio']);"
        "print('envoy_data_plane' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"
