"""The command line of `kvpicker up`."""

from __future__ import annotations

import argparse
import json

import pytest

from ext_proc.cli import main
from ext_proc.local.command import add_arguments


def parse(*words: str) -> argparse.Namespace:
    """Parse a command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_everything_has_a_default() -> None:
    """The bare command is the usual one."""
    arguments = parse()
    assert (arguments.port, arguments.engine, arguments.strategy) == (8080, [], "least-wait")


def test_engines_add_up() -> None:
    """The option is repeatable."""
    assert parse("--engine", "http://a:1", "--engine", "http://b:2").engine == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_cannot_be_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option."""
    with pytest.raises(SystemExit):
        parse("--port", port)
    assert "--port" in capsys.readouterr().err


def test_json_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A live table is no JSON."""
    assert main(["up", "--json"]) == 2
    assert "--json goes with --smoke" in capsys.readouterr().err


def test_an_unknown_strategy_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """The message offers one that is meant."""
    assert main(["up", "--strategy", "least-wiat"]) == 2
    assert "did you mean least-wait?" in capsys.readouterr().err


def test_the_reason_of_a_failure_is_in_the_json_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read one, people the other."""
    assert main(["up", "--smoke", "--json", "--port", "0", "--envoy", "no-such-envoy"]) == 2
    captured = capsys.readouterr()
    assert "no executable file 'no-such-envoy'" in json.loads(captured.out)["error"]
    assert "no executable file 'no-such-envoy'" in captured.err
