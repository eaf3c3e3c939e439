"""The simulated engine as a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ext_proc.sim.engine import add_arguments

PROGRAM = (
    "import argparse, sys; from ext_proc.sim.engine import add_arguments, run; "
    "parser = argparse.ArgumentParser(); add_arguments(parser); sys.exit(run(parser.parse_args()))"
)


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An engine's process and the address that it printed."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout is not None
            line = engine.stdout.readline()
            yield engine, json.loads(line)["address"] if line else ""
        finally:
            engine.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_prints_its_address_and_stops_cleanly(number: signal.Signals) -> None:
    """The first line of output is the address; a signal ends it with exit code 0 and silence."""
    with process("--model", "a", "--model", "b", "--speed", "inf") as (engine, address):
        with urllib.request.urlopen(f"http://{address}/v1/models", timeout=10) as answer:
            assert [card["id"] for card in json.load(answer)["data"]] == ["a", "b"]
        engine.send_signal(number)
        _, errors = engine.communicate(timeout=10)
    assert (engine.returncode, errors) == (0, "")


def test_a_running_stream_does_not_hold_it_up() -> None:
    """Stopping takes about a second at most, also in the middle of a long answer."""
    body = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'
    with process("--speed", "0.01") as (engine, address):
        stream = urllib.request.urlopen(f"http://{address}/v1/chat/completions", body, timeout=10)
        engine.terminate()
        _, errors = engine.communicate(timeout=5)
        stream.close()
    assert (engine.returncode, errors) == (0, "")


def test_a_busy_port_is_a_clear_error() -> None:
    """An address that is in use ends the process with a sentence, not a traceback."""
    with process() as (_, address), process("--port", address.split(":")[1]) as (engine, _):
        _, errors = engine.communicate(timeout=10)
    assert engine.returncode == 1
    assert "cannot listen" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("option", "value"), [("--speed", "-1"), ("--speed", "nan"), ("--kv-tokens", "0"), ("--preset", "x")]
)
def test_options_are_checked(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Values that make no sense are refused by name."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "inf"])
def test_zero_and_infinite_speed_mean_no_delay(text: str) -> None:
    """Both ways to say "as fast as possible" are understood."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--speed", text]).speed == float("inf")
