"""What `kvpicker up` prints."""

from __future__ import annotations

import io
import json
import shlex
import sys
from typing import Any

import msgspec
import pytest

from ext_proc.local import report
from ext_proc.local.client import Reply
from ext_proc.local.demo import Part, Sent
from ext_proc.local.engines import Engine
from ext_proc.local.result import Result, unknown
from ext_proc.local.steps import console

ENGINES = [Engine(name=f"sim-{number}", address=f"127.0.0.1:{number}", models=("m",)) for number in (1, 2)]
RESULT = Result(
    requests=3, failures=0, cached_ratio=0.8, round_robin_cached_ratio=0.6, added_ms_p50=1.234, versions={"envoy": "1"}
)


def sent(number: int, reason: str = "prefix", **reply: Any) -> Sent:
    """Make an answered request that went to the first engine."""
    terms = {"cost_ms": 9.6, "queue_ms": 2.0, "prefill_ms": 7.0, "memory_ms": 0.0}
    candidates = [{"endpoint": "127.0.0.1:1", **terms}, {"endpoint": "127.0.0.1:2", **terms, "cost_ms": 80.4}]
    decision = {
        "endpoint": "127.0.0.1:1",
        "reason": reason,
        "predicted_cached_tokens": 64 * number,
        "candidates": candidates,
    }
    answer = Reply(**{"ttft": 0.05, "prompt_tokens": 100, "cached_tokens": 60, **reply})
    return Sent(part=Part.SHARED, number=number, body={}, request_id=f"id-{number}", reply=answer, decision=decision)


def shown(*requests: Sent) -> str:
    """Return what is printed of some requests."""
    output = io.StringIO()
    report.show(console(output), requests, ENGINES)
    return output.getvalue()


def concluded(result: Result) -> str:
    """Return what is printed of a result."""
    output = io.StringIO()
    report.conclude(console(output), result)
    return output.getvalue()


def test_requests_with_one_answer_share_a_row() -> None:
    """Numbers are shortened, and values become a span."""
    row = next(line for line in shown(*map(sent, (1, 2, 3, 5))).splitlines() if "sim-1" in line)
    assert [cell.strip() for cell in row.split("  ") if cell.strip()] == [
        *("1-3, 5", "sim-1", "it holds the prefix", "64-320", "60", "100", "2 + 7 + 0", "80", "50")
    ]


def test_different_reasons_have_rows_of_their_own() -> None:
    """Why a request went somewhere is not averaged."""
    text = shown(sent(1), sent(2, "wait"), sent(3))
    assert "1, 3 " in text
    assert "shortest wait" in text


def test_a_reason_without_words_is_shown_as_it_is() -> None:
    """A strategy of a third party may give its own."""
    assert "lunar_phase" in shown(sent(1, "lunar_phase"))


def test_a_failure_is_shown_in_full() -> None:
    """The request's id and the engine's message help to find the cause."""
    assert "id-1 failed: status 500: oh no" in shown(sent(1, error="status 500: oh no"))


def test_a_request_without_explanation_is_shown() -> None:
    """The ring of decisions may have moved on."""
    request = sent(1)
    request.decision = None
    assert "not known" in shown(request)


def test_the_conclusion_compares_with_round_robin() -> None:
    """Both ratios are there, and how the second came about."""
    text = concluded(RESULT)
    assert "80.0%" in text
    assert "60.0% with round robin: the same requests, replayed" in text


def test_silent_engines_are_told_apart_from_useless_caches() -> None:
    """Nothing reported is not nothing cached."""
    text = concluded(msgspec.structs.replace(RESULT, cached_ratio=None))
    assert "the engines report no cached tokens" in text


@pytest.mark.parametrize("model", ["m", 'it\'s/a "model"', "ünïcode"], ids=["plain", "quotes", "unicode"])
def test_the_curl_line_can_be_pasted(model: str) -> None:
    """A shell reads one URL, one header and one JSON body."""
    words = shlex.split(report.curl("http://127.0.0.1:8080", model))
    assert words[2] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(words[-1])["model"] == model


def test_a_result_that_could_not_be_had_says_why() -> None:
    """It names the versions that are known without an Envoy."""
    result = unknown("port 80 is in use")
    assert (result.error, set(result.versions)) == ("port 80 is in use", {"kvpicker", "python", "grpcio", "protobuf"})


@pytest.mark.parametrize(
    ("run_by", "found", "line"),
    [
        ("/usr/bin/kvpicker", "/usr/bin/kvpicker", "kvpicker"),
        (".venv/bin/kvpicker", None, ".venv/bin/kvpicker"),
        ("/my venv/bin/kvpicker", None, "'/my venv/bin/kvpicker'"),
        ("/src/ext_proc/cli.py", None, f"{shlex.quote(sys.executable)} -m ext_proc.cli"),
    ],
)
def test_commands_are_printed_as_they_can_be_run_here(run_by: str, found: str | None, line: str) -> None:
    """After `make run` no shell finds `kvpicker` by its name."""
    assert report.command(run_by, found) == line
