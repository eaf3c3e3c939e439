"""The command line: what it prints and how it ends."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from ext_proc.cli import main
from tests.certificates import Authority

GOOD = "pools: {main: {endpoints: ['10.0.0.11:8000']}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a usable configuration."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(GOOD)
    return path


def test_check_accepts_a_usable_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file ends with status 0 and a word."""
    assert main(["check", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: good\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scoring: {prefix_wieght: 3}\n", "scoring"),
        (GOOD.replace("endpoints", "endpionts"), "did you mean"),
        ("pools: {main: {endpoints: ['10.0.0.11:8000'], strategy: {name: least-wiat}}}", "did you mean least-wait"),
        (
            "pools: {main: {endpoints: ['10.0.0.11:8000'], strategy: {parameters: {prefil_rate: 1}}}}",
            "pools.main.strategy.parameters",
        ),
        (
            (
                "pools: {main: {endpoints: ['10.0.0.11:8000']}}\nmodels: {m: {strategy: {name: chain, parameters:"
                " {then: {name: least-wiat}}}}}"
            ),
            "models.m.strategy.parameters.then.name: no strategy is called `least-wiat`; did you mean least-wait?",
        ),
    ],
    ids=["unknown section", "unknown field", "unknown strategy", "unknown parameter", "unknown strategy of a model"],
)
def test_check_says_what_is_wrong(config: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    """A bad file ends with status 2 and a message that leads to the mistake (I04)."""
    config.write_text(text)
    assert main(["check", str(config)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(
    ("strategy", "place"),
    [
        ("{name: least-wiat}", "kvpicker.yaml:4: pools.main.strategy.name: "),
        (
            "\n      parameters:\n        prefil_rate: 1",
            "kvpicker.yaml:6: pools.main.strategy.parameters.prefil_rate: ",
        ),
        ("{name: random, parameters: {seed: 1}}", "kvpicker.yaml:4: pools.main.strategy.parameters: "),
    ],
    ids=["name", "parameter", "no parameters"],
)
def test_an_error_of_a_strategy_has_file_and_line(
    config: Path, capsys: pytest.CaptureFixture[str], command: str, strategy: str, place: str
) -> None:
    """What only the strategy can tell leads to its place in the file like all else."""
    config.write_text(f"pools:\n  main:\n    endpoints: ['10.0.0.11:8000']\n    strategy: {strategy}\n")
    assert main([command, str(config)]) == 2
    assert place in capsys.readouterr().err


def test_check_reads_endpoints_files(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake in a watched file is found too."""
    endpoints = config.with_name("engines.yaml")
    endpoints.write_text("endpoints: [engine-a.example]")
    config.write_text(f"pools: {{main: {{endpoints_file: {endpoints}}}}}")
    assert main(["check", str(config)]) == 2
    assert str(endpoints) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"), [(None, "not a regular file"), (b"\xff\xfe", "UTF-8"), (b"endpoints: []\n" * 9, "twice")]
)
def test_check_says_what_is_wrong_with_an_endpoints_file(
    config: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, told: str
) -> None:
    """A folder and bytes that are no text are mistakes too, and no traceback."""
    endpoints = config.with_name("engines.yaml")
    config.write_text(f"pools: {{main: {{endpoints_file: {endpoints}}}}}")
    if content is None:
        endpoints.mkdir()
    else:
        endpoints.write_bytes(content)
    assert main(["check", str(config)]) == 2
    said = capsys.readouterr().err
    assert str(endpoints) in said
    assert told in said
    assert "pool main" in said


def test_check_notes_an_endpoints_file_that_is_not_there(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may come later, or its path is a mistake: nobody but the reader knows."""
    config.write_text(f"pools: {{main: {{endpoints_file: {config}.engines}}}}")
    assert main(["check", str(config)]) == 0
    assert f"pools.main.endpoints_file: {config}.engines is not there yet" in capsys.readouterr().out


def test_check_notes_a_certificate_that_is_not_valid_any_more(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gateways that do not verify take it, so it is no mistake."""
    certificate, key = Authority().issue("old", left=-dt.timedelta(hours=1)).write(tmp_path)
    tls = f"tls: {{certificate: {certificate}, key: {key}}}"
    config.write_text(f"pools: {{main: {{endpoints: ['10.0.0.11:8000']}}}}\n{tls}\n")
    assert main(["check", str(config)]) == 0
    assert f"tls.certificate: {certificate} is not valid any more, since 20" in capsys.readouterr().out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema can be given to an editor."""
    assert main(["schema"]) == 0
    assert "pools" in json.dumps(json.loads(capsys.readouterr().out))


def test_serve_refuses_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration that is not there is named."""
    assert main(["serve", str(tmp_path / "nothing.yaml")]) == 2
    assert "nothing.yaml" in capsys.readouterr().err


def test_envoy_config_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration of a profile comes out as YAML."""
    assert main(["envoy-config", "--profile", "lean"]) == 0
    assert "envoy.filters.http.ext_proc" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` tells which kvpicker it is."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("kvpicker ")
