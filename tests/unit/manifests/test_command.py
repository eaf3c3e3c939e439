"""The command `kvpicker envoy-config` for gateways."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ext_proc.cli import main
from ext_proc.manifests import PROFILES
from ext_proc.manifests.command import add_arguments

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
        (("--profile", "kgateway", "--failure-mode", "open"), "--failure-mode: the profile kgateway has no use"),
        (("--profile", "kgateway", "--retries", "2"), "--retries: the profile kgateway has no use for it"),
        (("--profile", "lean", "--replicas", "2"), "--replicas: the profile lean has no use for it"),
        (("--profile", "istio", "--no-first-token"), "--first-token: the profile istio has no use for it"),
        (
            ("--endpoint", "10.0.0.1:80", "--endpoints-file", "/run/kvpicker/eds.json"),
            "--endpoints-file: `--endpoint` takes its place; leave one out",
        ),
        (("--envoy", "envoy"), "--envoy: it checks nothing without `--check`; add that"),
        (("--retries", "0", "--repeatable", "/x"), "--repeatable: nothing is sent again without `--retries`"),
        (("--profile", "duplex", "--repeatable", "/x"), "--repeatable: nothing is sent again without `--retries`"),
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


OTHERS = {
    "--envoy-version": ("1.37",), "--listen": ("0.0.0.0:81",), "--admin": ("none",), "--processor": ("10.0.0.9:9002",),
    "--endpoints-file": ("/x.json",), "--endpoint": ("10.0.0.1:80",), "--failure-mode": ("closed",),
    "--first-token": (), "--message-timeout": ("0.5",), "--max-message-timeout": ("9",), "--body-limit": ("65536",),
    "--retries": ("1",), "--repeatable": ("/x",), "--session-header": ("s",), "--session-cookie": ("s",),
    "--tenant-header": ("x-t",), "--priority-header": ("x-p",), "--gateway-headers": (), "--engine-orders": (),
    "--tls-ca": ("ca",), "--tls-name": ("n",), "--tls-client": ("ca",), "--tls-secrets": ("/s",),
    "--tls-unverified": (), "--envoy": ("e",), "--namespace": ("n",), "--gateway": ("g",), "--gateway-class": ("c",),
    "--pool": ("p",),
    "--selector": ("a=b",), "--target-port": ("1",), "--picker": ("p",), "--picker-port": ("1",), "--model": ("m",),
    "--replicas": ("3",),
}  # fmt: skip
"""A value for each option that changes what is rendered, and is not its default."""

AUTHORITY = ("--tls-ca", "ca", "--tls-name", "n")
BESIDE = {"--tls-name": AUTHORITY[:2], "--tls-ca": AUTHORITY[2:], "--tls-client": AUTHORITY, "--tls-secrets": AUTHORITY}
"""What an option needs to have a meaning."""

OF_DUPLEX = ("--body-limit", "--first-token", "--max-message-timeout", "--message-timeout", "--repeatable", "--retries")
"""Options that full duplex could leave nothing to do; of the others the profiles of Envoys make the same."""

CASES = [("lean", option) for option in OTHERS] + [("duplex", option) for option in OF_DUPLEX]
CASES += [(profile, option) for profile in PROFILES for option in OTHERS]


@functools.cache
def printed(*words: str) -> tuple[int, str, str]:
    """Run the command; return its status, what it printed behind the line that tells the command, and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = call(*words)
    return status, out.getvalue().partition("\n")[2], err.getvalue()


def test_the_options_are_all_known() -> None:
    """Who adds one says here what it changes."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    names = {action.option_strings[0] for action in parser._actions}
    assert names - {"-h", "--profile", "--check", "--output", "--write-secrets"} == set(OTHERS)


@pytest.mark.parametrize(("profile", "option"), CASES)
def test_no_option_is_ignored(profile: str, option: str) -> None:
    """With each profile an option alters what is rendered, or is refused by its name."""
    words = ("--profile", profile, *(() if option == "--model" else NEEDED.get(profile, ())))
    beside = BESIDE.get(option, ())
    status, text, complaint = printed(*words, *beside, option, *OTHERS[option])
    if status:
        assert complaint.startswith(tuple(f"kvpicker: {name}: " for name in (option, *beside[::2])))
    else:
        assert text != printed(*words, *beside)[1]


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
