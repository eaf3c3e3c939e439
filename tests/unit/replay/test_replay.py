"""`kvpicker replay` from its command line to its output, on the real simulator with the real picker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ext_proc.cli import main, parser
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking
from ext_proc.replay.contestants import PEERS, contestants
from ext_proc.replay.runs import Job, RunFailed, run, run_all
from ext_proc.sim.fleet.conditions import Conditions
from ext_proc.sim.fleet.presets import PRESETS
from ext_proc.sim.fleet.results import Slo
from ext_proc.sim.workload import SimRequest, Workload
from tests.waiting import until

SMALL = ["--requests", "120", "--engines", "2", "--jobs", "1"]
CHAT = ["replay", "--workload", "chat", "--strategies", "least-wait,round-robin", *SMALL]

REQUESTS = tuple(SimRequest(number / 10, 600, 8, (number % 3,)) for number in range(30))


def job(strategy: str = "least-wait", view: str = "observed") -> Job:
    """Make a small job."""
    (contestant,) = contestants(strategy, view)
    workload = Workload("w", 512, REQUESTS)
    return Job(workload, (PRESETS["h100-8b"],) * 2, contestant, 1, Slo(), 0.0, Conditions(scrape_interval=0.2))


def spawned(parent: int) -> list[str]:
    """Return the processes that a replay started for its runs."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):  # one that is only just gone is none
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def still_there(processes: list[str]) -> list[str]:
    """Return those of the processes that are still there."""
    return [process for process in processes if Path(f"/proc/{process}").exists()]


def replayed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_two_strategies_on_two_engines(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: requests are made, served by each strategy, and compared."""
    report = replayed(capsys, *CHAT)
    wait, robin = report["strategies"]
    assert (wait["label"], robin["label"]) == ("least-wait", "round-robin")
    assert wait["requests"] == robin["requests"] > 60
    assert wait["hit_ratio"] > robin["hit_ratio"] > 0.3
    assert wait["ttft_to_first"] == 1.0
    assert robin["ttft_to_first"] == pytest.approx(robin["ttft_mean_s"] / wait["ttft_mean_s"], rel=1e-4)
    assert report["engines"] == [{"preset": "h100-8b", "count": 2, "kv_tokens": 450_000}]


def test_equal_seeds_give_equal_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether in one process or in several; another seed gives other numbers."""
    assert main([*CHAT, "--json"]) == 0
    first = capsys.readouterr().out
    assert main([*CHAT, "--json", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == first
    assert main([*CHAT, "--json", "--seeds", "2"]) == 0
    assert capsys.readouterr().out != first


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the table is on standard output."""
    assert main(CHAT) == 0
    out = capsys.readouterr().out
    assert "chat: " in out
    assert "round-robin" in out


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what is printed."""
    path = tmp_path / "report.html"
    assert main([*CHAT, "--html", str(path)]) == 0
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before minutes are spent on runs."""
    assert main([*CHAT, "--html", str(tmp_path / "no" / "report.html")]) == 2
    captured = capsys.readouterr()
    assert "--html: " in captured.err
    assert captured.out == ""


def test_a_page_never_takes_the_place_of_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused, and the trace keeps its content."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"timestamp": 0, "input_length": 4, "output_length": 4, "hash_ids": []}))
    before = path.read_bytes()
    assert main(["replay", str(path), *SMALL, "--html", str(path)]) == 2
    assert "--html: " in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_failure_leaves_the_old_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What comes to nothing costs no older report."""
    path = tmp_path / "report.html"
    path.write_text("old")
    assert main(["replay", str(tmp_path / "nothing"), "--html", str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert path.read_text() == "old"


def test_a_trace_is_replayed_with_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unusable lines and requests that no engine can hold are counted and told."""
    line = {"timestamp": 0, "input_length": 1030, "output_length": 4, "hash_ids": [1, 2, 3]}
    huge = {**line, "input_length": 600_000, "hash_ids": list(range(1172))}
    texts = [json.dumps({**line, "timestamp": 100 * number}) for number in range(20)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([*texts, json.dumps(huge), "rubbish"]))
    report = replayed(capsys, "replay", str(path), *SMALL, "--warm-up", "0")
    workload = report["workload"]
    assert (workload["requests"], workload["unusable_lines"], workload["too_long"]) == (20, 1, 1)
    assert (workload["name"], workload["format"]) == ("trace.jsonl", "mooncake")
    assert any(f"{path}:22: " in note for note in workload["notes"])


def test_a_fleet_without_room_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The option that decides is named."""
    assert main([*CHAT, "--kv-tokens", "100"]) == 2
    assert "--kv-tokens: no request fits" in capsys.readouterr().err


def test_an_unknown_strategy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the one that was meant."""
    assert main(["replay", "--workload", "chat", "--strategies", "least-wiat"]) == 2
    assert "did you mean least-wait?" in capsys.readouterr().err


@pytest.mark.parametrize("view", ["observed", "events", "oracle"])
def test_every_view_finds_prefixes(view: str) -> None:
    """Three prefixes on two engines: nearly every request meets its own."""
    assert run(job(view=view)).numbers.hit_ratio > 0.5


@pytest.mark.parametrize("peer", ["gie", "lmetric", "sglang", "ttft-oracle"])
def test_peers_can_be_compared_with(peer: str) -> None:
    """Each serves every request."""
    assert run(job(peer)).numbers.requests == len(REQUESTS)


class Failing:
    """A strategy that fails on all requests but every so many."""

    def __init__(self, good: int) -> None:
        self.good = good

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Raise, or put all on a par."""
        if self.good and context.turn % self.good == 0:
            return Ranking([0.0] * len(candidates))
        raise LookupError("no\x1b[0m idea")


@pytest.mark.parametrize(("good", "status"), [(0, 1), (2, 0)])
def test_a_strategy_that_fails_is_told_of(
    good: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What least-request did in its place is not passed off as its own; if it did all, the command fails."""
    monkeypatch.setitem(cast("dict[str, Any]", PEERS), "failing", lambda _: Failing(good))
    words = ["replay", "--workload", "hot", "--strategies", "failing,round-robin", *SMALL, "--json"]
    assert main(words) == status
    captured = capsys.readouterr()
    failing, robin = json.loads(captured.out)["strategies"]
    assert failing["strategy_failures"] == failing["runs"][0]["strategy_failures"] == (60 if good else 120)
    assert "LookupError: no\\x1b[0m idea" in failing["failure"]
    assert (robin["strategy_failures"], robin["failure"]) == (0, "")
    assert "kvpicker: warning: failing failed on " in captured.err
    assert "LookupError: no\\x1b[0m idea" in captured.err
    assert ("failing failed on every request" in captured.err) is bool(status)
    assert "strategy" in captured.err


@pytest.mark.parametrize("named", [True, False])
def test_sessions_are_known_where_the_trace_names_them(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then session-affinity keeps a conversation together, though its prompts share nothing."""
    lines = [
        {"timestamp": number, "body": {"prompt": f"{number:02}" * 400}}
        | ({"session": f"s{number % 2}"} if named else {})
        for number in range(40)
    ]
    path = tmp_path / "bodies.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    report = replayed(
        capsys, "replay", str(path), *SMALL, "--strategies", 'session-affinity:{"then": {"name": "random"}}'
    )
    assert (report["strategies"][0]["balance"] == 0) is named


def test_progress_adds_up() -> None:
    """Every request is told of once, in this process and in others."""
    for processes in (1, 2):
        told: list[int] = []
        run_all([job(), job()], processes, told.append)
        assert sum(told) == 2 * len(REQUESTS)


def test_what_goes_wrong_in_a_process_is_told() -> None:
    """With the strategy and the seed it happened to."""
    twisted = Workload("w", 512, (SimRequest(0.0, 1, 1, (1, 2)),))
    bad = Job(twisted, job().engines, job().contestant, 7, Slo(), 0.0, Conditions(scrape_interval=0.2))
    with pytest.raises(RunFailed, match="least-wait with seed 7: SimulationError: request 0"):
        run_all([bad, bad], 2, lambda _: None)


def test_a_process_that_dies_is_told() -> None:
    """It neither hangs the command nor leaves a result out."""

    def die(_: int) -> None:
        for child in spawned(os.getpid()):
            os.kill(int(child), signal.SIGKILL)

    long = Workload("w", 512, tuple(SimRequest(number / 10, 600, 8, (number,)) for number in range(20_000)))
    jobs = [Job(long, job().engines, job().contestant, 1, Slo(), 0.0, Conditions(scrape_interval=0.2))] * 2
    with pytest.raises(RunFailed, match="is gone"):
        run_all(jobs, 2, die)


@pytest.mark.timeout(300)
async def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C reaches the children too; none is left, no traceback is shown, and an older page still stands.

    Many engines make the runs long and what is handed to them small: how long the start of three processes takes, and
    their end amid it, is for the machine to say.
    """
    page = tmp_path / "report.html"
    page.write_text("old")
    command = [sys.executable, "-m", "ext_proc.cli", "replay", "--workload", "uniq", "--requests", "20000"]
    process = await asyncio.create_subprocess_exec(
        *command, "--engines", "100", "--jobs", "2", "--html", page, stderr=PIPE, start_new_session=True
    )
    children: list[str] = []

    def started() -> bool:
        children[:] = spawned(process.pid)
        return len(children) == 2

    try:
        await until(started, 90)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not still_there(children)
    assert page.read_text() == "old"


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As an error the user can mend."""
    with pytest.raises(ConfigError, match="nothing: cannot be read"):
        main_raises(tmp_path / "nothing")


def main_raises(path: Path) -> None:
    """Run the command past the place where its errors are printed."""
    arguments = parser().parse_args(["replay", str(path)])
    arguments.run(arguments)
