"""Orders of operators, from the admin server and the command line to the endpoints, on a running kvpicker."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ext_proc.app import Service
from ext_proc.assembly import check
from ext_proc.cli import main, parser
from ext_proc.config import AdminConfig, load
from ext_proc.core.errors import ConfigError
from ext_proc.core.lifecycle import Mark
from ext_proc.core.model import Api, Decision, Ending, InferenceRequest, Operation, Outcome
from ext_proc.ops.admin import serve
from ext_proc.ops.admin_token import objection
from tests.waiting import until

A, B, V6 = "10.0.0.11:8000", "10.0.0.12:8000", "[fd00::13]:8000"
TOKEN = "sesame-of-the-test"
CONFIG = f"""
listen: ["127.0.0.1:0"]
admin: {{{{listen: "127.0.0.1:0"{{token}}}}}}
drain_s: 0
scrape: {{{{enabled: false}}}}
envoy: {{{{endpoints_file: {{folder}}/eds.json}}}}
pools:
  main:
    endpoints: ["{A}", "{B}", "{V6}"]
    models: [acme/chat-8b]
"""
ASKED = InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, model="acme/chat-8b", prompt_tokens=10)


class Running:
    """A kvpicker with its log, and ways to talk to it."""

    def __init__(self, folder: Path, *, token: bool = True) -> None:
        self.folder = folder
        self.output = io.BytesIO()
        self.config = folder / "kvpicker.yaml"
        self.token_file = folder / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        shown = f', token_file: "{self.token_file}"' if token else ""
        self.config.write_text(CONFIG.format(token=shown, folder=folder))
        self.service = Service(load(self.config), self.config, self.output)

    @property
    def admin(self) -> str:
        """The URL of the admin server."""
        return f"http://{self.service.admin_address}"

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event."""
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def call(self, path: str, *, method: str = "POST", token: str | None = TOKEN) -> tuple[int, dict[str, Any]]:
        """Ask for a page."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(self.admin) as client, client.request(method, path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def command(self, *arguments: str) -> int:
        """Run a command of kvpicker in a thread, since it has an event loop of its own."""
        options = ["--admin", self.admin]
        if arguments[0] != "endpoints":
            options += ["--token-file", str(self.token_file)]
        return await asyncio.to_thread(main, [*arguments, *options])

    def pick(self, address: str) -> Decision:
        """Have a request sent to an endpoint."""
        made = self.service._core.picker.pick(ASKED, time.monotonic(), self.service._generator, {address})
        assert isinstance(made, Decision)
        return made

    def settle(self, decision: Decision) -> None:
        """Let a request end."""
        outcome = Outcome(decision_id=decision.id, ending=Ending.OK, served=decision.chosen.address)
        assert self.service._core.feedback.settle(outcome, time.monotonic())

    def hosts(self) -> dict[str, str]:
        """Return what Envoy is told of each host."""
        (resource,) = json.loads((self.folder / "eds.json").read_text())["resources"]
        entries = [entry for locality in resource["endpoints"] for entry in locality["lb_endpoints"]]
        sockets = [entry["endpoint"]["address"]["socket_address"]["address"] for entry in entries]
        return {name: entry["health_status"] for name, entry in zip(sockets, entries, strict=True)}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """Run a kvpicker with a token."""
    made = Running(tmp_path)
    async with made.service:
        yield made


async def test_a_drain_ends_when_the_last_request_has(running: Running) -> None:
    """The answer is held back until then, and says that nothing is left; the log tells both ends."""
    decision = running.pick(A)
    drained = asyncio.create_task(running.call(f"/endpoints/{A}/drain?wait=20s"))
    await until(lambda: running.service._core.lifecycle.stage(decision.chosen.slot) == "draining")
    status, page = await running.call(f"/endpoints/{A}/drain?deadline=5m")
    assert (status, page["endpoints"][0]["running"]) == (202, 1)
    assert 299 < page["endpoints"][0]["deadline_s"] <= 300
    assert not drained.done()
    running.settle(decision)
    ended = time.monotonic()
    status, page = await drained
    assert time.monotonic() - ended < 2
    row = page["endpoints"][0]
    assert (status, row["address"], row["lifecycle"], row["running"], row["left"]) == (200, A, "drained", 0, 0)
    running.service._output.flush()
    stages = [(line["endpoint"], line["before"], line["state"]) for line in running.logged("lifecycle_changed")]
    assert stages == [(A, "active", "draining"), (A, "draining", "drained")]


async def test_an_idle_endpoint_is_drained_at_once_and_taken_back(running: Running) -> None:
    """Envoy's fallback policy hears of both."""
    status, page = await running.call(f"/endpoints/{A}/drain")
    assert (status, page["endpoints"][0]["lifecycle"]) == (200, "drained")
    assert running.hosts() == {"10.0.0.11": "DRAINING", "10.0.0.12": "HEALTHY", "fd00::13": "HEALTHY"}
    status, page = await running.call(f"/endpoints/{A}/undrain")
    assert (status, page["endpoints"][0]["lifecycle"]) == (200, "active")
    assert set(running.hosts().values()) == {"HEALTHY"}


async def test_the_deadline_ends_a_drain_with_what_is_left(running: Running) -> None:
    """The request goes on; it is told."""
    running.pick(A)
    status, page = await running.call(f"/endpoints/{A}/drain?deadline=100ms&wait=10s")
    assert (status, page["endpoints"][0]["lifecycle"], page["endpoints"][0]["left"]) == (200, "drained", 1)


async def test_ipv6_is_understood_in_any_notation(running: Running) -> None:
    """Brackets in the path, and an address that is written out (E07)."""
    for written in ("[fd00::13]:8000", "%5Bfd00:0:0::13%5D:8000"):
        status, page = await running.call(f"/endpoints/{written}/cordon")
        assert (status, page["endpoints"][0]["address"]) == (200, V6)


async def test_a_reload_of_the_configuration_takes_nothing_back(running: Running) -> None:
    """What an operator said stays until he says otherwise."""
    await running.call(f"/endpoints/{A}/cordon")
    running.config.write_text(running.config.read_text().replace(f'"{B}", ', ""))
    await until(lambda: len(running.service._core.registry.snapshot.endpoints) == 2)
    _, page = await running.call("/endpoints", method="GET", token=None)
    assert [(row["address"], row["lifecycle"]) for row in page["endpoints"]] == [(A, "cordoned"), (V6, "active")]


async def test_pages_and_metrics_show_the_stage(running: Running) -> None:
    """For dashboards and people."""
    running.pick(A)
    await running.call(f"/endpoints/{A}/drain?deadline=1h")
    _, page = await running.call("/debug/endpoints", method="GET")
    (row,) = (row for row in page["endpoints"] if row["address"] == A)
    assert (row["lifecycle"], row["in_flight"]) == ("draining", 1)
    assert 3590 < row["drain_deadline_s"] <= 3600
    async with aiohttp.ClientSession(running.admin) as client, client.get("/metrics") as answer:
        text = await answer.text()
    assert f'kvpicker_endpoint_lifecycle{{endpoint="{A}",pool="main",stage="draining"}} 1.0' in text


@pytest.mark.parametrize("verb", ["drain", "undrain", "cordon"])
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ünicode"])
async def test_nothing_changes_without_the_token(running: Running, verb: str, token: str | None) -> None:
    """Whoever does not show it is turned away (H15)."""
    status, page = await running.call(f"/endpoints/{A}/{verb}", token=token)
    assert status == 401
    assert "Bearer TOKEN" in page["error"] or "not the token" in page["error"]
    assert {mark.stage for mark, _ in running.service._draining.listed()} == {"active"}


def test_bytes_that_are_no_text_are_not_the_token(tmp_path: Path) -> None:
    """They are turned away as any wrong token is (401), and not by a fault of the server."""
    (tmp_path / "token").write_text(TOKEN)
    config = AdminConfig(token_file=str(tmp_path / "token"))
    shown = b"Bearer \xff\xfe".decode("utf-8", "surrogateescape")  # as the server reads headers
    assert objection(config, {"Authorization": shown}) == (401, "this is not the token")
    assert objection(config, {"Authorization": f"Bearer {TOKEN}"}) is None


async def test_the_start_page_names_the_pages_of_endpoints(running: Running) -> None:
    """Where orders are given is found as all else is."""
    async with aiohttp.ClientSession(running.admin) as client, client.get("/") as answer:
        assert {"/endpoints", "/endpoints/{address}/drain"} <= set((await answer.text()).splitlines())


async def test_without_a_configured_token_the_answer_says_how_to_mend_it(tmp_path: Path) -> None:
    """By default nothing can be changed over the network at all (H15)."""
    made = Running(tmp_path, token=False)
    async with made.service:
        status, page = await made.call(f"/endpoints/{A}/drain")
        assert status == 403
        assert "admin.token_file" in page["error"]
        assert (await made.call("/endpoints", method="GET", token=None))[0] == 200


async def test_a_token_that_is_changed_holds_at_once(running: Running) -> None:
    """A secret that is rotated needs no restart; one that cannot be read lets nobody in."""
    running.token_file.write_text("another\n")
    assert (await running.call(f"/endpoints/{A}/cordon"))[0] == 401
    assert (await running.call(f"/endpoints/{A}/cordon", token="another"))[0] == 200
    running.token_file.write_text("")
    status, page = await running.call(f"/endpoints/{A}/cordon", token="another")
    assert status == 403
    assert "holds no token" in page["error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/endpoints/10.9.9.9:1/drain", 404, "no endpoint is listed as `10.9.9.9:1`; known are 10.0.0.11:8000"),
        ("/endpoints/nonsense/cordon", 404, "no endpoint is listed as `nonsense`"),
        (f"/endpoints/{A}/drain?deadline=soon", 400, "deadline: `soon` is not a duration"),
        (f"/endpoints/{A}/drain?deadline=30d", 400, "longer than seven days"),
        (f"/endpoints/{A}/drain?dedline=1m", 400, "unknown query parameter `dedline`"),
        (f"/endpoints/{A}/cordon?wait=1", 400, "this page knows none"),
    ],
)
async def test_mistakes_are_told(running: Running, path: str, status: int, said: str) -> None:
    """And change nothing."""
    found, page = await running.call(path)
    assert (found, said in page["error"]) == (status, True), page
    assert {mark.stage for mark, _ in running.service._draining.listed()} == {"active"}


async def test_who_leaves_does_not_wait_any_more(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks that are killed and come again do not pile up here; the drain itself goes on."""
    decision = running.pick(A)
    waiting: list[float] = []
    wait = running.service._draining.wait

    async def counted(marks: Sequence[Mark], seconds: float) -> None:
        waiting.append(seconds)
        try:
            await wait(marks, seconds)
        finally:
            waiting.remove(seconds)

    monkeypatch.setattr(running.service._draining, "wait", counted)
    call = asyncio.create_task(running.call(f"/endpoints/{A}/drain?wait=1h"))
    await until(lambda: waiting == [3600])
    call.cancel()
    await until(lambda: not waiting)
    assert running.service._core.lifecycle.stage(decision.chosen.slot) == "draining"


async def test_the_command_goes_on_when_kvpicker_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A connection that breaks while it waits is made again; the order, which it forgot, is given again."""
    deadlines: list[float] = []
    watched: list[str] = []

    def answer(stage: str) -> web.Response:
        row = {"address": A, "lifecycle": stage, "running": 1, "left": 0}
        told = {"instance": "a" if len(watched) < 3 else "b", "endpoints": [row]}
        return web.json_response(told, status=202 if stage == "draining" else 200)

    async def drain(request: web.Request) -> web.Response:
        deadlines.append(float(request.query["deadline"]))
        if len(deadlines) == 2 and request.transport is not None:
            request.transport.abort()
        return answer("draining")

    async def watch(request: web.Request) -> web.Response:
        watched.append(request.query["wait"])
        if len(watched) < 3 and request.transport is not None:  # the client asks twice by itself
            request.transport.abort()
        return answer("active" if len(watched) == 3 else "drained")

    monkeypatch.setenv("KVPICKER_ADMIN_TOKEN", TOKEN)
    app = web.Application()
    app.router.add_post("/endpoints/{address}/drain", drain)
    app.router.add_get("/endpoints/{address}", watch)
    async with serve(app, "127.0.0.1:0") as admin:
        arguments = ["drain", A, "--wait", "--deadline", "1m", "--admin", admin]
        assert await asyncio.to_thread(main, arguments) == 0
    assert (len(deadlines), len(watched)) == (4, 4)
    assert deadlines == sorted(deadlines, reverse=True)
    assert deadlines[2] < 60
    assert "trying again" in capfd.readouterr().err


def _commands(page: str) -> list[str]:
    text = (Path(__file__).parents[2] / "deploy" / page).read_text("utf-8")
    blocks = re.findall(r"```(?:sh|yaml)\n(.*?)```", text, re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ").replace("\n              --admin", " --admin")
    return re.findall(r"kvpicker (?:drain|cordon|undrain|endpoints)[^#'\n]*", joined)


@pytest.mark.parametrize("command", _commands("lifecycle.md"))
def test_the_commands_of_the_page_are_understood(command: str) -> None:
    """Copied from there they mean something."""
    parsed = parser().parse_args(shlex.split(command)[1:])
    assert parsed.endpoint in ("10.0.0.11:8000", "$POD_IP:8000")


def test_the_page_has_commands() -> None:
    """And the hook among them names both kvpickers."""
    assert len(_commands("lifecycle.md")) >= 3
    assert any(command.count("--admin") == 2 and "--missing-ok" in command for command in _commands("lifecycle.md"))


async def test_changes_are_no_reading(running: Running) -> None:
    """A link that somebody follows drains nothing."""
    async with aiohttp.ClientSession(running.admin) as client, client.get(f"/endpoints/{A}/drain") as answer:
        assert answer.status == 405


async def test_the_command_waits_for_the_last_request(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """It returns 0 promptly after it."""
    decision = running.pick(A)
    command = asyncio.create_task(running.command("drain", A, "--wait", "--deadline", "1m"))
    printed: list[str] = []
    await until(lambda: printed.append(capfd.readouterr().err) or "1 request running, 60 s" in "".join(printed))
    assert not command.done()
    running.settle(decision)
    ended = time.monotonic()
    assert await command == 0
    assert time.monotonic() - ended < 3
    assert f"{A}: drained, 0 requests running" in capfd.readouterr().err


async def test_the_command_tells_requests_that_were_left(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """With a status of its own, so that a script can tell."""
    running.pick(A)
    assert await running.command("drain", A, "--wait", "--deadline", "200ms") == 3
    assert "the deadline passed while 1 request still ran" in capfd.readouterr().err


async def test_the_command_tells_that_a_drain_was_called_off(running: Running) -> None:
    """It does not wait for what will not come."""
    decision = running.pick(A)
    command = asyncio.create_task(running.command("drain", A, "--wait", "--deadline", "20s"))
    await until(lambda: running.service._core.lifecycle.stage(decision.chosen.slot) == "draining")
    await running.call(f"/endpoints/{A}/undrain")
    assert await command == 4


async def test_watching_an_endpoint_orders_nothing(running: Running) -> None:
    """The command only looks on after its order, so that an order of somebody else in between holds."""
    decision = running.pick(A)
    await running.call(f"/endpoints/{A}/drain")
    watched = asyncio.create_task(running.call(f"/endpoints/{A}?wait=20s", method="GET", token=None))
    status, page = await running.call(f"/endpoints/{A}", method="GET", token=None)
    assert (status, page["endpoints"][0]["lifecycle"]) == (202, "draining")
    await running.call(f"/endpoints/{A}/undrain")
    status, page = await watched
    assert (status, page["endpoints"][0]["lifecycle"]) == (200, "active")
    assert running.service._core.lifecycle.stage(decision.chosen.slot) == "active"
    assert (await running.call("/endpoints/10.9.9.9:1", method="GET"))[0] == 404
    assert (await running.call(f"/endpoints/{A}?wait=soon", method="GET"))[0] == 400


async def test_a_drain_outlives_the_removal_of_its_endpoint(running: Running) -> None:
    """The source drops an endpoint that terminates; its hook goes on waiting, and can also begin then."""
    decision = running.pick(A)
    command = asyncio.create_task(running.command("drain", A, "--wait", "--deadline", "20s"))
    await until(lambda: running.service._core.lifecycle.stage(decision.chosen.slot) == "draining")
    running.config.write_text(running.config.read_text().replace(f'"{A}", ', ""))
    await until(lambda: len(running.service._core.registry.snapshot.endpoints) == 2)
    second = asyncio.create_task(running.call(f"/endpoints/{A}/drain?wait=20s"))
    _, page = await running.call("/endpoints", method="GET")
    assert [(row["address"], row["removed"]) for row in page["endpoints"]] == [(B, False), (V6, False), (A, True)]
    running.settle(decision)
    assert await command == 0
    assert (await second)[1]["endpoints"][0]["running"] == 0
    assert await running.command("drain", A, "--wait") == 2
    assert await running.command("drain", A, "--wait", "--missing-ok") == 0


async def test_endpoints_are_listed_as_table_and_json(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """Every endpoint with health and stage."""
    await running.command("cordon", A)
    capfd.readouterr()
    assert await running.command("endpoints") == 0
    shown = capfd.readouterr().out.splitlines()
    assert [line.split()[:4] for line in shown[1:2]] == [[A, "main", "ready", "cordoned"]]
    assert await running.command("endpoints", "--json") == 0
    listing = json.loads(capfd.readouterr().out)
    assert [row["address"] for row in listing[running.admin]] == [A, B, V6]
    assert await running.command("undrain", A) == 0


async def test_endpoints_are_shown_with_what_they_may_hold(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """Requests and tokens beside their caps, on the debug page with the queue, and in the table."""
    text = running.config.read_text() + "    caps: {requests: 4, tokens: 20_000}\n"
    running.config.write_text(text)
    running.service._reload(load(running.config))
    running.pick(A)
    _, page = await running.call("/debug/endpoints", method="GET")
    caps = {row["address"]: row["caps"] for row in page["endpoints"]}
    assert caps[A]["requests"] == {"used": 1, "limit": 4, "share": 0.25}
    assert 0 < caps[A]["tokens"]["used"] < caps[A]["tokens"]["limit"] == 20_000
    assert caps[B]["requests"]["used"] == 0
    assert (page["queues"]["main"]["requests"], page["queues"]["main"]["max_requests"]) == (0, 1000)
    assert await running.command("endpoints") == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].split()[:7] == ["endpoint", "pool", "health", "lifecycle", "running", "tokens", "waiting"]
    assert shown[1].split()[4:10] == ["1", "/", "4", f"{caps[A]['tokens']['used']:,}", "/", "20,000"]


async def test_a_drain_is_told_to_every_kvpicker(running: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With two of them behind one Envoy the endpoint leaves both, and the worse result counts."""
    other = Running(tmp_path_factory.mktemp("other"))
    async with other.service:
        other.pick(A)
        arguments = ["drain", A, "--wait", "--deadline", "300ms", "--admin", other.admin]
        assert await running.command(*arguments) == 3
        for each in (running, other):
            assert each.service._core.lifecycle.stage(each.pick(B).chosen.slot) == "active"
            assert each.service._draining.listed()[0][0].stage == "drained"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", A], "this needs the admin token"),
        (["cordon", A, "--token-file", "/nonexistent"], "/nonexistent cannot be read"),
        (["endpoints", "--admin", "http://127.0.0.1:1"], "no kvpicker answers at http://127.0.0.1:1/endpoints"),
        (["endpoints", "--admin", "ftp://x"], "no URL of an admin server"),
    ],
)
def test_what_the_user_can_mend_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 2."""
    monkeypatch.delenv("KVPICKER_ADMIN_TOKEN", raising=False)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


async def test_an_admin_url_that_leads_elsewhere_is_told_in_plain_words(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port of the gRPC server, or https where plain http is spoken."""
    for url, said in (
        (f"http://{running.service.grpc_addresses[0]}", "is it the gRPC server, `listen`?"),
        (running.admin.replace("http", "https"), "admin servers speak plain http"),
    ):
        assert await asyncio.to_thread(main, ["endpoints", "--admin", url]) == 2
        assert said in capsys.readouterr().err


async def test_the_token_may_come_from_the_environment(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it stands in no command line."""
    monkeypatch.setenv("KVPICKER_ADMIN_TOKEN", TOKEN)
    assert await asyncio.to_thread(main, ["cordon", A, "--admin", running.admin]) == 0
    monkeypatch.setenv("KVPICKER_ADMIN_TOKEN", "wrong")
    assert await asyncio.to_thread(main, ["cordon", A, "--admin", running.admin]) == 2


async def test_the_token_may_come_from_the_configuration(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside kvpicker one option is enough."""
    monkeypatch.delenv("KVPICKER_ADMIN_TOKEN", raising=False)
    arguments = ["cordon", A, "--admin", running.admin, "--config", str(running.config)]
    assert await asyncio.to_thread(main, arguments) == 0


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (', token_env: "KVPICKER_TEST_NO_SUCH"', "admin.token_env: the environment variable"),
        (', token_file: "/nonexistent/token"', "admin.token_file: /nonexistent/token cannot be read"),
    ],
)
async def test_a_token_that_cannot_be_read_stops_the_start(tmp_path: Path, token: str, said: str) -> None:
    """Rather than to be missed on the day it is needed; `kvpicker check` says so too."""
    made = Running(tmp_path)
    made.config.write_text(CONFIG.format(token=token, folder=tmp_path))
    with pytest.raises(ConfigError, match=said):
        check(made.config)
    with pytest.raises(ConfigError, match=said):
        async with Service(load(made.config), None, io.BytesIO()):
            pass


async def test_states_that_flap_do_not_flood_envoys_file(running: Running) -> None:
    """A hundred changes of health in a moment make one writing at most; it shows the last one (E10)."""
    core = running.service._core
    endpoint = core.registry.snapshot.by_address[A]
    versions: set[str] = set()
    version: Callable[[], str] = lambda: json.loads((running.folder / "eds.json").read_text())["version_info"]  # noqa: E731
    for _ in range(100):
        core.health.note(endpoint, Ending.CONNECT_FAILURE, time.monotonic())
        await asyncio.sleep(0)
        versions.add(version())
        core.health.remove(endpoint.slot)
        await asyncio.sleep(0)
        versions.add(version())
    core.health.note(endpoint, Ending.CONNECT_FAILURE, time.monotonic())
    await until(lambda: running.hosts()["10.0.0.11"] == "UNHEALTHY")
    versions.add(version())
    assert len(versions) <= 3
