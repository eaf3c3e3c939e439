"""The command `kvpicker explain`: what it prints and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ext_proc.app import Service
from ext_proc.cli import main
from ext_proc.config import load

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {listen: "127.0.0.1:0"}
drain_s: 0
pools:
  main:
    endpoints: ["10.0.0.11:8000", "10.0.0.12:8000"]
    models: [acme/chat-8b]
"""
BODY = {"model": "acme/chat-8b", "messages": [{"role": "user", "content": "List three rivers, SECRET. " * 40}]}


class Running:
    """A kvpicker in a thread of its own, since the command has an event loop of its own."""

    def __init__(self, path: Path) -> None:
        self.admin = ""
        self.state = b""
        self._path = path
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def start(self) -> None:
        """Run it."""
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        self._loop.close()

    async def _run(self) -> None:
        async with Service(load(self._path), None, io.BytesIO()) as service:
            self.admin = f"http://{service.admin_address}"
            self._ready.set()
            await self._end.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a request and a configuration."""
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    (tmp_path / "kvpicker.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    """Run a kvpicker."""
    made = Running(folder / "kvpicker.yaml")
    made.start()
    yield made
    made.stop()


Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(folder: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Run the command on the request of the folder."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["explain", "--request", str(folder / "body.json"), *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_a_running_kvpicker_explains(running: Running, explain: Explain) -> None:
    """The table names every candidate with its terms, and where the request would go; asking again changes nothing."""
    status, output, _ = explain("--admin", running.admin, "--header", "x-session-id: s-1")
    assert status == 0
    for part in ("10.0.0.11:8000", "10.0.0.12:8000", "queue", "interference", "KV memory", "cost in ms", "least-wait"):
        assert part in output
    assert "SECRET" not in output
    assert explain("--admin", running.admin, "--header", "x-session-id: s-1")[1] == output


def test_json_is_one_object(running: Running, explain: Explain) -> None:
    """Scripts get the same as JSON."""
    status, output, _ = explain("--admin", running.admin.removeprefix("http://"), "--json")
    told = json.loads(output)
    assert (status, told["verdict"], len(told["candidates"])) == (0, "picked", 2)
    row = told["candidates"][0]
    parts = ("queue_ms", "prefill_ms", "interference_ms", "backlog_ms", "memory_ms", "copying_ms")
    assert sum(row[part] for part in parts) == pytest.approx(row["cost_ms"], abs=0.003)


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ({"input": "List three rivers. " * 40}, "response of acme/chat-8b, about"),
        ({"prompt": "List three rivers. " * 40}, "completion of acme/chat-8b, about"),
        ({"system": "List three rivers. " * 40, **BODY}, "message of acme/chat-8b, about"),
    ],
    ids=["responses", "completions", "anthropic"],
)
def test_the_path_is_guessed_from_the_body(
    running: Running, folder: Path, explain: Explain, body: dict[str, Any], operation: str
) -> None:
    """Whoever has a body of another API need not say so, or learn of no prompt; --path goes before the guess."""
    (folder / "body.json").write_text(json.dumps({"model": "acme/chat-8b", **body}))
    output = explain("--admin", running.admin)[1]
    assert operation in output
    assert "no_prompt" not in output
    if "input" in body:
        chat = explain("--admin", running.admin, "--path", "/v1/chat/completions")[1]
        assert "; nothing of a prompt stands where" in chat
        assert "--path" in chat


def test_a_refusal_is_explained_with_status_0(running: Running, folder: Path, explain: Explain) -> None:
    """What the client would get is told; explaining it has not failed."""
    (folder / "body.json").write_text(json.dumps({**BODY, "model": "acme/unknown"}))
    status, output, _ = explain("--admin", running.admin)
    assert status == 0
    assert "refused with 404 model_not_found" in output
    assert "10.0.0.11:8000, 10.0.0.12:8000: does not serve the model (model)" in output


def test_a_path_that_is_not_known_passes(running: Running, explain: Explain) -> None:
    """Envoy would choose by itself."""
    assert "left to Envoy's own choice (unknown_path)" in explain("--admin", running.admin, "--path", "/metrics")[1]


def test_a_state_explains_later(running: Running, folder: Path, explain: Explain) -> None:
    """The state of a running kvpicker decides as that one does, and a configuration may take its place."""
    live = json.loads(explain("--admin", running.admin, "--json")[1])
    state = folder / "state.json"
    state.write_bytes(_get(f"{running.admin}/debug/state"))
    told = json.loads(explain("--state", str(state), "--json")[1])
    assert any("sessions" in note for note in told.pop("notes"))
    live.pop("notes")
    assert told == live
    other = folder / "other.yaml"
    other.write_text(CONFIG.replace("    models", "    strategy: {name: least-request}\n    models"))
    status, output, _ = explain("--state", str(state), "--config", str(other))
    assert (status, "least-request" in output, "cost in ms" in output) == (0, True, False)


def test_pools_of_a_state_must_be_configured(running: Running, folder: Path, explain: Explain) -> None:
    """A configuration with other pools would decide by no strategy of its own; both sides are named."""
    state, other = folder / "state.json", folder / "other.yaml"
    state.write_bytes(_get(f"{running.admin}/debug/state"))
    other.write_text(CONFIG.replace("  main:", "  chat:"))
    status, output, error = explain("--state", str(state), "--config", str(other))
    assert (status, output) == (2, "")
    assert "--config: the state has endpoints in pool `main`, the configuration has pool `chat`; without" in error


def test_a_broken_body_is_told(running: Running, folder: Path, explain: Explain) -> None:
    """The verdict says that the choice was made without the prompt."""
    (folder / "body.json").write_text("{'model': 1")
    verdict = explain("--admin", running.admin)[1].splitlines()[0]
    assert "; the body is not valid JSON, so neither its model nor its prompt was read" in verdict


def test_the_configuration_names_the_admin_server(running: Running, folder: Path, explain: Explain) -> None:
    """With a configuration alone, the kvpicker that runs with it is asked, also where it listens everywhere."""
    port = running.admin.rpartition(":")[2]
    path = folder / "other.yaml"
    path.write_text(CONFIG.replace('admin: {listen: "127.0.0.1:0"}', f'admin: {{listen: "0.0.0.0:{port}"}}'))
    assert explain("--config", str(path))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--admin", "http://127.0.0.1:1"], "is it running, and is this its `admin.listen`?"),
        (["--admin", "http://127.0.0.1:1"], "/debug/explain: connection refused; is it running"),
        (["--admin", "ftp://127.0.0.1:1"], "--admin: `ftp://127.0.0.1:1` is no URL of an admin server; write http://"),
        (["--admin", "http://nowhere.invalid:1"], "its name is not known; is it running"),
        (["--admin", "h:1", "--config", "{folder}/kvpicker.yaml"], "--config: it names an admin server, and so does"),
        (["--state", "{folder}/missing.json"], "missing.json: --state: cannot be read: No such file"),
        (["--state", "{folder}/body.json"], "this is not what /debug/state shows"),
        (["--config", "{folder}/kvpicker.yaml"], "admin.listen: port 0 takes any free port; name the admin server"),
        (["--config", "{folder}/missing.yaml"], "cannot be read"),
        (["--header", "no-colon"], "--header: `no-colon` is no header; write NAME:VALUE"),
        (["--request", "{folder}/missing"], "--request: "),
    ],
)
def test_what_cannot_be_used_ends_with_status_2(
    folder: Path, explain: Explain, arguments: list[str], complaint: str
) -> None:
    """Each mistake is told with the option at fault and what to do."""
    status, output, error = explain(*[argument.replace("{folder}", str(folder)) for argument in arguments])
    assert (status, output) == (2, "")
    assert complaint in error


def test_another_server_is_recognised(running: Running, explain: Explain) -> None:
    """An address that answers otherwise is not taken for a kvpicker."""
    status, _, error = explain("--admin", f"{running.admin}/metrics")
    assert (status, "is it a kvpicker of this version?" in error) == (2, True)


def test_a_state_of_another_version_asks_for_a_configuration(running: Running, folder: Path, explain: Explain) -> None:
    """A configuration that this version does not understand can be replaced by one that it does."""
    state: dict[str, Any] = json.loads(_get(f"{running.admin}/debug/state"))
    state["config"]["future"] = {}
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    status, _, error = explain("--state", str(path))
    assert (status, "give one with --config" in error) == (2, True)
    assert explain("--state", str(path), "--config", str(folder / "kvpicker.yaml"))[0] == 0


def test_the_request_may_come_by_standard_input(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-` reads standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(BODY).encode())))
    assert main(["explain", "--request", "-", "--admin", running.admin, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "acme/chat-8b"


def test_a_request_may_have_no_body(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """A look-up is explained too."""
    assert main(["explain", "--method", "get", "--path", "/v1/models", "--admin", running.admin, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operation"] == "lookup"


def _get(url: str) -> bytes:
    import urllib.request  # noqa: PLC0415

    with urllib.request.urlopen(url) as response:  # noqa: S310
        content: bytes = response.read()
        return content
