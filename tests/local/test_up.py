"""`kvpicker up`, end to end: real processes, a real Envoy, real signals."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.envoy

READY = "running until SIGINT"
RUNNING = "sending the demonstration"
DEADLINE = 60.0


class Up:
    """A running `kvpicker up`.

    Attributes:
        process: the process itself.
        folder: its place for temporary files.
        output: what it has printed.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.output = ""

    def read_until(self, text: str) -> None:
        """Read what it prints until a line holds some text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"ended before {text!r}:\n{self.output}")

    def find(self, name: str) -> str:
        """Return the URL on the line that begins with `name`."""
        found = re.search(rf"^{name} +(\S+)", self.output, re.MULTILINE)
        assert found
        return found[1]

    def traces(self) -> list[str]:
        """List the processes and files that belong to it, with itself."""
        return [*processes(self.folder).values(), *map(str, self.folder.iterdir())]

    def wait(self) -> int:
        """Read the rest of what it prints and return its exit code."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(20)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.wait()


def processes(folder: Path) -> dict[int, str]:
    """Find the commands of running processes whose place for temporary files is `folder`, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue
    return found


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.05)


@contextmanager
def start(folder: Path, *options: str, output: int = subprocess.PIPE) -> Iterator[Up]:
    """Start the command in a process group of its own."""
    command = [sys.executable, "-m", "ext_proc.cli", "up", *options]
    environment = {**os.environ, "TMPDIR": str(folder), "TERM": "xterm"}
    with subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield Up(process, folder)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A stack that has held its demonstration; for tests that leave it running."""
    with start(tmp_path_factory.mktemp("up"), "--port", "0") as up:
        up.read_until(READY)
        yield up
        up.end(signal.SIGTERM)


def smoke(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the demonstration alone; returns exit code, JSON and stderr."""
    command = [sys.executable, "-m", "ext_proc.cli", "up", "--smoke", "--json", "--port", "0", *options]
    environment = {**os.environ, "TMPDIR": str(folder)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE, check=False)
    return result.returncode, json.loads(result.stdout), result.stderr


def test_the_demonstration_beats_round_robin(tmp_path: Path) -> None:
    """Every request is answered, more of it from caches, and the one line on stdout is JSON."""
    code, result, _ = smoke(tmp_path)
    assert (code, result["requests"], result["failures"]) == (0, 32, 0)
    assert result["cached_ratio"] > result["round_robin_cached_ratio"] > 0
    assert set(result) == {
        *("requests", "failures", "cached_ratio", "round_robin_cached_ratio", "added_ms_p50", "versions")
    }
    assert set(result["versions"]) == {"kvpicker", "envoy", "python", "grpcio", "protobuf"}
    assert list(tmp_path.iterdir()) == []


def test_another_strategy_can_be_shown(tmp_path: Path) -> None:
    """Round robin itself gets about what the replay says it gets."""
    code, result, _ = smoke(tmp_path, "--strategy", "round-robin")
    assert code == 0
    assert result["cached_ratio"] == pytest.approx(result["round_robin_cached_ratio"], abs=0.08)


def test_the_users_engines_take_the_place_of_simulated_ones(tmp_path: Path) -> None:
    """Their first model is asked for; what round robin would have got there is not known."""
    with engine("--model", "acme/chat") as first, engine("--model", "acme/chat") as second:
        code, result, said = smoke(tmp_path, "--engine", first, "--engine", second)
    assert (code, result["failures"], result["round_robin_cached_ratio"]) == (0, 0, None)
    assert result["cached_ratio"] > 0.5
    assert "acme/chat" in said


def test_a_failing_demonstration_fails_the_command(tmp_path: Path) -> None:
    """The reason is in the JSON, on stderr and in the exit code."""
    with engine("--max-model-len", "300") as url:
        code, result, said = smoke(tmp_path, "--engine", url)
    assert code == 1
    assert result["failures"] > 0
    assert "maximum context length" in result["error"]
    assert result["error"] in said


def test_the_pasted_line_gets_an_answer(up: Up) -> None:
    """The curl line streams, and without `stream` it does not."""
    words = shlex.split(next(line for line in up.output.splitlines() if line.startswith("curl ")))
    body = json.loads(words[-1])
    assert "data: " in ask(words[2], body)
    assert "choices" in json.loads(ask(words[2], {**body, "stream": False}))


def test_only_the_engines_are_left_after_the_demonstration(up: Up) -> None:
    """What latency was measured against is out of the way."""
    endpoints = json.loads(ask(up.find("admin") + "/debug/endpoints"))["endpoints"]
    assert sorted(endpoint["labels"]["name"] for endpoint in endpoints) == ["sim-1", "sim-2", "sim-3"]


def test_the_demonstration_can_be_looked_at(up: Up) -> None:
    """Its decisions are still remembered, and the output says how to ask for more."""
    told = json.loads(ask(up.find("admin") + "/debug/decisions?limit=256"))["decisions"]
    assert sum(one["request_id"].startswith("demonstration-") for one in told) == 32
    assert f" explain --request body.json --admin {up.find('admin')}" in up.output
    assert re.search(rf" drain \S+ --wait --admin {up.find('admin')} --token-file \S+", up.output)


def test_a_client_on_this_machine_may_ask_for_an_explanation(up: Up) -> None:
    """The header that the output names is answered."""
    assert "x-kvpicker-explain: 1" in up.output
    body = b'{"messages": [{"role": "user", "content": "Hello"}]}'
    headers = {"content-type": "application/json", "x-kvpicker-explain": "1"}
    asked = urllib.request.Request(up.find("entry") + "/v1/chat/completions", body, headers)  # noqa: S310  ours
    with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310  as above
        assert len(json.loads(answer.headers["x-kvpicker-explanation"])["candidates"]) == 3


def test_a_request_without_a_model_is_served(up: Up) -> None:
    """There is one model only."""
    url = up.find("entry") + "/v1/chat/completions"
    assert "choices" in json.loads(ask(url, {"messages": [{"role": "user", "content": "Hello"}]}))


def test_the_output_says_where_requests_went_and_why(up: Up) -> None:
    """Turns after the first went where the conversation was."""
    assert re.search(r"2-8 +sim-\d +it holds the prefix", up.output)
    assert "with round robin" in up.output
    assert up.find("admin").startswith("http://127.0.0.1:")


def test_a_terminal_shows_a_live_table_until_it_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C is how it is meant to end: the exit code is 0, and no process and no file is left."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    with start(tmp_path, "--port", "0", output=terminal) as up:
        os.close(terminal)
        with os.fdopen(master, encoding="utf-8", errors="replace", newline="\n") as screen:
            assert any("prompt tokens/s" in line for line in screen)
            assert any("sim-3" in line and "ready" in line for line in screen)
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(20) == 0
    assert up.traces() == []


def test_a_smoke_test_that_is_stopped_says_so(tmp_path: Path) -> None:
    """The reason is in the JSON, as for any other failure."""
    with start(tmp_path, "--port", "0", "--smoke", "--json") as up:
        up.read_until("starting three")
        assert up.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert '"error":"stopped by SIGTERM"' in up.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_without_trace(tmp_path: Path, number: signal.Signals) -> None:
    """So does a closed terminal, also while requests are running; the exit code tells the signal."""
    with start(tmp_path, "--port", "0") as up:
        up.read_until(RUNNING)
        assert up.end(number) == 128 + number
    assert up.traces() == []


def test_a_kill_leaves_nothing_behind(tmp_path: Path) -> None:
    """After SIGKILL all processes and files are gone within 5 s, even while requests are running."""
    with start(tmp_path, "--port", "0") as up:
        up.read_until(RUNNING)
        assert len(up.traces()) > 6
        up.process.kill()
        up.process.wait(5)
        wait_for(lambda: up.traces() == [], 5)


@pytest.mark.parametrize(
    ("command", "name"),
    [("cli serve", "kvpicker"), ("sim-engine", r"sim-\d"), ("--admin-address-path", "Envoy")],
    ids=["kvpicker", "engine", "Envoy"],
)
def test_a_crash_of_any_process_ends_it(tmp_path: Path, command: str, name: str) -> None:
    """It says which process ended and how, and leaves nothing behind."""
    with start(tmp_path, "--port", "0") as up:
        up.read_until(RUNNING)
        os.kill(next(pid for pid, text in processes(tmp_path).items() if command in text), signal.SIGKILL)
        assert up.wait() == 1
    assert re.search(rf"^kvpicker: {name} ended with signal SIGKILL", up.output, re.MULTILINE)
    assert up.traces() == []


@pytest.mark.parametrize("step", ["starting three", "starting kvpicker", "starting Envoy", RUNNING])
def test_an_interrupt_while_starting_works_at_once(tmp_path: Path, step: str) -> None:
    """Whatever it is doing, Ctrl-C ends it, before it comes to anything else, and leaves nothing behind."""
    with start(tmp_path, "--port", "0") as up:
        up.read_until(step)
        assert up.end(signal.SIGINT) == 130
    assert RUNNING not in up.output.partition(step)[2]
    assert up.traces() == []


def test_a_busy_port_is_a_clear_error(tmp_path: Path) -> None:
    """It names the port and the option, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, result, said = smoke(tmp_path, "--port", str(port))
    assert (code, result["error"]) == (2, f"port {port} is in use; choose another with --port")
    assert "starting" not in said


def ask(url: str, body: dict[str, Any] | None = None) -> str:
    """Get a page, or send JSON; returns the text of the answer."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=20)
    try:
        if body is None:
            connection.request("GET", f"/{path}")
        else:
            connection.request("POST", f"/{path}", json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@contextmanager
def engine(*options: str) -> Iterator[str]:
    """Start an engine as a user would; yields its URL."""
    command = [sys.executable, "-m", "ext_proc.cli", "sim-engine", "--speed", "10", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield "http://" + json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(10)
