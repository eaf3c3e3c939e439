"""The command from files to tables, JSON and a page."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
import xml.etree.ElementTree as ET
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.analyze import reference
from ext_proc.analyze.report import WHOLE_BLOCKS, Report
from ext_proc.cli import main
from tests.unit.analyze.bodies import RULES, TOOLS, chat, words

SECRET = "the swordfish sings at midnight"


def conversations(count: int, turns: int, **members: Any) -> list[dict[str, Any]]:
    """Make conversations behind one system prompt, interleaved."""
    return [
        chat(RULES, *[f"{SECRET} {words((who, turn), 120)}" for turn in range(2 * length - 1)], **members)
        for length in range(1, turns + 1)
        for who in range(count)
    ]


def write(path: Path, rows: list[Any]) -> str:
    """Write a file of lines."""
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def names(folder: Path) -> list[str]:
    """Return what a directory holds."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def chats(tmp_path: Path) -> str:
    """Write three hundred requests of sixty conversations, ten seconds from one turn to the next."""
    bodies = conversations(60, 5, tools=TOOLS)
    rows = [{"timestamp": 10.0 * (number // 60), "body": body} for number, body in enumerate(bodies)]
    return write(tmp_path / "chats.jsonl", rows)


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run the command with --json."""
    assert main(["analyze", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_says_how_much_repeats_and_what_routing_gains(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Growing conversations: little for round robin, nearly all for prefix affinity."""
    report = report_of(capsys, chats, "--engines", "8", "--kv-bytes-per-token", "131072")
    ratios = {policy["policy"]: policy["hit_ratio"] for policy in report["fleet"]["policies"]}
    assert report["source"]["requests"] == 300
    assert report["reuse_ratio"] == pytest.approx(ratios["one shared cache"])
    assert ratios["prefix-affinity"] > ratios["round-robin"] + 0.1
    assert report["sessions"]["growing"] == 60
    assert report["sessions"]["gap_seconds"]["p50"] == pytest.approx(10, rel=0.01)
    assert report["families"][0]["requests"] == 300
    assert report["breakers"] == []
    assert report["sampling"]["curve_rate"] == 1
    assert "Prefix-aware routing pays" in report["advice"][0]
    point = report["curve"][-1]
    assert point["gib"] == pytest.approx(point["tokens"] / 8192)


def test_json_has_exactly_the_documented_fields(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference is made of the same structs, and every field of them has a meaning."""
    report = report_of(capsys, chats)
    assert set(report) == {field.name for field in msgspec.structs.fields(Report)}
    listed = re.findall(r"^\| `([^`]+)`", reference.reference(), flags=re.MULTILINE)
    assert {"fleet.policies[].hit_ratio", "curve[].tokens", "breakers[].lost_share", "prompts.p99"} <= set(listed)
    assert all(path in listed for path in report)


def test_unique_prompts_need_no_cache_aware_routing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice is as plain as the traffic."""
    path = write(tmp_path / "unique.jsonl", [chat(words(number, 300), "Hello") for number in range(250)])
    report = report_of(capsys, path)
    assert report["reuse_ratio"] < 0.01
    assert "prefixes hardly repeat" in report["advice"][0]
    assert "least-request will do" in report["advice"][0]


def test_a_broken_prefix_is_in_the_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong, where, and what to do about it."""
    bodies = [chat(f"Time: 2026-11-29 08:{n % 60:02}:{n % 59:02}\n{RULES}", words(n, 40)) for n in range(250)]
    advice = report_of(capsys, write(tmp_path / "dated.jsonl", bodies))["advice"]
    assert "Date or time in messages[0] (system)" in advice[-1]
    assert "behind the constant text" in advice[-1]


def test_small_caches_are_named(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What repeats, but not before it is forgotten, asks for memory."""
    report = report_of(capsys, chats, "--engines", "2", "--kv-tokens", "2000")
    assert any("The caches are small for this traffic" in sentence for sentence in report["advice"])
    assert report["tokens_for_most"] > 4000


def test_only_the_wanted_models_are_analysed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are counted."""
    rows = [chat(RULES, words(number, 80)) | {"model": f"m{number % 3}"} for number in range(30)]
    path = write(tmp_path / "models.jsonl", rows)
    assert report_of(capsys, path, "--model", "m1", "--model", "m2")["source"]["other_models"] == 10
    models = report_of(capsys, path)["models"]
    assert [(model["model"], model["requests"]) for model in models] == [("m0", 10), ("m1", 10), ("m2", 10)]
    assert main(["analyze", path, "--model", "none"]) == 2
    assert "no request of the models that --model names; 30 of other models" in capsys.readouterr().err


def test_text_is_readable_and_holds_no_prompt(
    chats: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts are there; what customers wrote is not."""
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["analyze", chats]) == 0
    out = capsys.readouterr().out
    for part in ("Advice", "prefix-affinity", "Hit ratio against cache size", "many prompts begin with", "Lengths"):
        assert part in out
    assert "swordfish" not in out
    assert "bookshop" not in out


def test_excerpts_are_opt_in(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With leave, families show how they begin."""
    report = report_of(capsys, chats, "--show-prompts")
    assert any(
        "assistant of a bookshop" in family["excerpt"] or "stock" in family["excerpt"] for family in report["families"]
    )
    assert "swordfish" not in json.dumps(report_of(capsys, chats))


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It parses, has plots, asks for nothing elsewhere, and shows names of strangers as text."""
    evil = '<script src="https://evil.example/x.js">&'
    rows = [chat(RULES, words(number, 80)) | {"model": (evil, "m")[number % 2]} for number in range(40)]
    page = tmp_path / "report.html"
    assert main(["analyze", write(tmp_path / "<b>.jsonl", rows), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    root = ET.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314  our own page
    assert len(root.findall(".//svg")) == 3
    assert root.findall(".//script") == root.findall(".//b") == []
    assert evil in "".join(root.itertext())
    elements = [element for element in root.iter() if {"src", "href", "action"} & set(element.attrib)]
    assert elements == []
    assert "url(" not in text
    assert "swordfish" not in text
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl: No such file"),
        (["FILE", "--first-block", "1024", "--last-block", "256"], "--last-block must be at least --first-block"),
        (["FILE", "--html", "no/such/directory/report.html"], "give --html a file that can be written"),
    ],
)
def test_mistakes_end_with_status_2(
    chats: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """And say how to mend them."""
    assert main(["analyze", *[chats if argument == "FILE" else argument for argument in arguments]]) == 2
    assert message in capsys.readouterr().err


def test_a_file_without_requests_says_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line that cannot be used leads to the mistake."""
    path = tmp_path / "log.txt"
    path.write_text("GET / 200\n")
    assert main(["analyze", str(path)]) == 2
    assert f"{path}:1: not a JSON object" in capsys.readouterr().err
    path.write_text("")
    assert main(["analyze", str(path)]) == 2
    assert "give a file with one JSON object a line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [["--engines", "0"], ["--engines", "1001"], ["--kv-tokens", "-1"], ["--first-block", "8"]]
)
def test_options_are_bounded(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nonsense is refused before anything is read."""
    with pytest.raises(SystemExit) as stop:
        main(["analyze", "x", *option])
    assert stop.value.code == 2
    assert "is outside" in capsys.readouterr().err


def test_standard_input_is_read(
    chats: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads what is piped in."""
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(Path(chats).read_bytes())))
    monkeypatch.setattr("sys.stdin", stdin)
    assert report_of(capsys, "-")["source"] | {"files": []} == report_of(capsys, chats)["source"] | {"files": []}


def test_equal_traffic_gives_equal_reports(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing depends on the clock or on luck."""
    assert report_of(capsys, chats) == report_of(capsys, chats)


def test_advice_on_tools_reads_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The part of the request is not named twice."""
    bodies = [chat(RULES, words(number, 40), tools=TOOLS[:: (1, -1)[number % 2]]) for number in range(250)]
    advice = report_of(capsys, write(tmp_path / "tools.jsonl", bodies))["advice"]
    assert any(sentence.startswith("Order of tools, 0 tokens into the prompt") for sentence in advice)


def test_the_input_is_not_overwritten(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the hand costs no recorded traffic."""
    before = Path(chats).read_bytes()
    assert main(["analyze", chats, "--html", chats]) == 2
    assert "is what is read; give another file" in capsys.readouterr().err
    assert Path(chats).read_bytes() == before


async def test_an_interrupt_ends_quietly_and_leaves_the_old_page(tmp_path: Path) -> None:
    """No traceback, status 130, and an older report is still there."""
    page = tmp_path / "report.html"
    page.write_text("old")
    command = [sys.executable, "-m", "ext_proc.cli", "analyze", "-", "--html", str(page)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    line = json.dumps(chat(RULES, words(0, 300))).encode() + b"\n"
    try:
        assert process.stdin is not None
        # More than a pipe and its buffers hold: when it is gone, the command reads.
        for _ in range(4):
            process.stdin.write(line * (1_000_000 // len(line)))
            await asyncio.wait_for(process.stdin.drain(), 30)
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert page.read_text() == "old"
    assert names(tmp_path) == ["report.html"]


def test_one_line_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As people write it; shares say how they are counted."""
    path = write(tmp_path / "one.jsonl", [chat(RULES, "Hello")])
    assert main(["analyze", path, "--html", str(tmp_path / "report.html")]) == 0
    out = capsys.readouterr().out
    for text in (out, (tmp_path / "report.html").read_text("utf-8")):
        assert "1 request of 1 line" in text
        assert "1 requests" not in text
        assert "1 lines" not in text
        assert WHOLE_BLOCKS in text
    assert "Only 1 request: " in out


@pytest.mark.parametrize("columns", ["40", "80"])
def test_heads_are_whole_words(
    columns: str, chats: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a narrow terminal no word of a head and no figure is broken."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["analyze", chats]) == 0
    words = capsys.readouterr().out.split()
    for word in ["prefill", "busiest", "tokens", "requests", "881,744", "200,909", "prefix-affinity"]:
        assert word in words


def test_the_fleet_is_that_of_replay(chats: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands answer for the same engines unless they are told."""
    fleet = report_of(capsys, chats)["fleet"]
    assert main(["replay", "--workload", "hot", "--requests", "20", "--strategies", "random", "--json"]) == 0
    (engines,) = json.loads(capsys.readouterr().out)["engines"]
    assert (fleet["engines"], fleet["kv_tokens"]) == (engines["count"], engines["kv_tokens"])
