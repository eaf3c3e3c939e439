"""Log lines of requests and faults."""

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ext_proc.config import LogConfig
from ext_proc.core.errors import ConfigError, NoReadyEndpoint, StrategyError
from ext_proc.core.model import Decision, Ending, FilterReport, InferenceRequest, Outcome
from ext_proc.ops.limited_log import LimitedLog
from ext_proc.ops.log_observer import LogObserver
from ext_proc.ops.logs import LineWriter, configure
from ext_proc.replay.decision_log import DecisionLog

LINES_PER_SECOND = LogConfig().max_per_second
OutcomeOf = Callable[..., Outcome]


class Written:
    """A log observer with a clock that is set by hand, and what it wrote."""

    def __init__(self, *, direct: bool) -> None:
        self.now = 0.0
        self.stream = io.BytesIO()
        self._lines = lines = LineWriter(self.stream)
        self.log = LimitedLog(configure("debug", "json", lines), LINES_PER_SECOND, clock=lambda: self.now)
        self.observer = LogObserver(self.log, lines if direct else None)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Read what was written."""
        self._lines.flush()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture(params=[False, True], ids=["structlog", "direct"])
def written(request: pytest.FixtureRequest) -> Written:
    """Nothing is written yet; lines of requests go either way."""
    return Written(direct=request.param)


def test_a_finished_request_is_one_line(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """The line says who asked for what, where it went, why, and what came of it."""
    written.observer.finished(decision, outcome_of(first_token=0.75))
    (line,) = written.lines
    assert line.pop("time")
    assert line == {
        "level": "info", "event": "request_finished", "request_id": "r-1", "decision_id": "d-1",
        "model": "acme/chat-8b", "operation": "chat", "endpoint": "10.0.0.11:8000", "status": 200,
        "ending": "ok", "attempts": 1, "prompt_tokens": 990, "hit_tokens": 512, "cached_tokens": 480,
        "completion_tokens": 70, "first_token_ms": 750.0, "duration_ms": 1500.0, "reason": "prefix",
    }  # fmt: skip


def test_a_finished_request_can_be_replayed(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """The line is what `kvpicker replay` reads: when the request came, and how long prompt and answer are."""
    written.observer.finished(decision, outcome_of())
    assert written.lines
    line = written.stream.getvalue().strip()
    assert DecisionLog.recognises(line)
    request = DecisionLog().read(line)
    assert request is not None
    assert (request.prompt_tokens, request.output_tokens) == (990, 70)


def test_the_estimate_stands_in_for_missing_usage(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """Without usage the line shows the estimated prompt tokens and no cached tokens."""
    written.observer.finished(decision, outcome_of(usage=Outcome(decision_id="", ending=Ending.OK).usage))
    assert (written.lines[0]["prompt_tokens"], written.lines[0]["cached_tokens"]) == (1000, None)


def test_deciding_alone_writes_nothing(written: Written, decision: Decision) -> None:
    """A request has one line, not one per step."""
    written.observer.decided(decision, 0.001)
    assert written.lines == []


def test_a_refusal_says_what_each_filter_left(written: Written, request_: InferenceRequest) -> None:
    """The line of a refused request holds the reason code and the filters."""
    written.observer.refused(request_, NoReadyEndpoint("x"), (FilterReport("ready", 4, 0),))
    (line,) = written.lines
    assert (line["event"], line["status"], line["reason"]) == ("request_refused", 503, "no_ready_endpoint")
    assert line["filters"] == ["ready: 0 of 4 match"]


def test_no_line_holds_a_prompt_or_a_foreign_message(
    written: Written, decision: Decision, outcome_of: OutcomeOf
) -> None:
    """Prompts, cache salts, sessions and the text of foreign exceptions are secrets at every level."""
    error = ValueError("cannot parse SECRET")
    written.observer.finished(decision, outcome_of())
    written.observer.refused(decision.request, NoReadyEndpoint("SECRET"), ())
    written.observer.failed("internal", error)
    written.observer.strategy_failed("least-wait", error)
    assert len(written.lines) == 4
    assert b"SECRET" not in written.stream.getvalue()


def test_what_is_wrong_with_a_ranking_is_logged(written: Written) -> None:
    """Our own words on what a strategy returned quote nothing of it, so the log has them."""
    written.observer.strategy_failed("mine", StrategyError("a strategy must return a Ranking"))
    (line,) = written.lines
    assert (line["strategy"], line["message"]) == ("mine", "a strategy must return a Ranking")


def test_an_unforeseen_fault_tells_type_and_place(written: Written) -> None:
    """Enough of a fault of our own is logged to find it in the code."""
    try:
        _ = {}["missing"]
    except KeyError as error:
        written.observer.failed("internal", error)
    (line,) = written.lines
    assert (line["level"], line["event"], line["error"]) == ("error", "exchange_failed", "KeyError")
    assert "test_log_observer.py" in line["at"][-1]


def test_an_expected_fault_has_no_stack_trace(written: Written) -> None:
    """An error that kvpicker raises on purpose is told in its own words."""
    written.observer.failed("mode", ConfigError("unexpected message"))
    (line,) = written.lines
    assert line["message"] == "unexpected message"
    assert "at" not in line


def test_a_flood_of_one_fault_is_ten_lines_a_second(written: Written) -> None:
    """Ten lines pass, the rest is counted, and the next line tells the count."""
    for _ in range(2_000):
        written.observer.failed("internal")
    assert len(written.lines) == LINES_PER_SECOND
    written.now = 1.0
    written.observer.failed("internal")
    assert written.lines[-1]["suppressed"] == 2_000 - LINES_PER_SECOND


def test_a_minute_of_outage_stays_readable(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """All endpoints refuse 2,000 requests/s for a minute: ten lines a second of each kind, without a trace (I14).

    Nothing is lost count of. The case's 60 s are 6 here.
    """
    refused = outcome_of(ending=Ending.CONNECT_FAILURE, status=503)
    seconds, rate = 6, 2_000
    for step in range(seconds * rate):
        written.now = step / rate
        written.observer.finished(decision, refused)
        written.observer.refused(decision.request, NoReadyEndpoint("none left"), (FilterReport("ready", 3, 0),))
        written.observer.failed("mode", ConfigError("unexpected message"))
    written.log.close()
    lines = written.lines
    for event, kind in (
        ("request_finished", "connect_failure"), ("request_refused", "no_ready_endpoint"), ("exchange_failed", "mode"),
    ):  # fmt: skip
        told = [line for line in lines if line["event"] == event]
        (rest,) = [line for line in lines if line.get("kind") == f"{event} {kind}"]
        assert len(told) == seconds * LINES_PER_SECOND
        assert len(told) + sum(line.get("suppressed", 0) for line in told) + rest["suppressed"] == seconds * rate
    assert not any("at" in line for line in lines)
    assert b"Traceback" not in written.stream.getvalue()


def test_a_change_of_health_is_seen_in_a_flood(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """Whatever else fills the log, and however one endpoint flaps, another's ejection has its line (I14)."""
    for _ in range(2_000):
        written.observer.finished(decision, outcome_of(ending=Ending.CONNECT_FAILURE, status=503))
        written.observer.health_changed(decision.chosen, "degraded", "slow")
        written.observer.health_changed(decision.chosen, "ready", "answers")
    written.observer.health_changed(decision.endpoints[1], "ejected", "3 failures")
    assert (written.lines[-1]["endpoint"], written.lines[-1]["state"]) == (decision.endpoints[1].address, "ejected")


def test_one_kind_of_fault_does_not_hide_another(written: Written) -> None:
    """Each reason has ten lines of its own."""
    for _ in range(50):
        written.observer.failed("internal")
    written.observer.failed("unexpected_body")
    assert written.lines[-1]["reason"] == "unexpected_body"


def test_good_requests_are_never_held_back(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """Each request that ended well, or by its client, has its line: they are a log of decisions (I14)."""
    for ending in (Ending.OK, Ending.CLIENT_ERROR, Ending.CLIENT_GONE):
        for _ in range(20):
            written.observer.finished(decision, outcome_of(ending=ending))
    assert len(written.lines) == 60


def test_names_of_clients_are_cut_and_escaped(written: Written, decision: Decision, outcome_of: OutcomeOf) -> None:
    """A client cannot fill the log, or a terminal, with what it calls its request."""
    written.observer.finished(decision, outcome_of(request_id="\x1b[2J" + "x" * 10_000))
    assert written.lines[0]["request_id"].startswith("\\x1b[2Jxxx")
    assert len(written.lines[0]["request_id"]) < 150


def test_the_reason_of_a_stranger_may_be_more_than_text(
    written: Written, decision: Decision, outcome_of: OutcomeOf
) -> None:
    """Such as a string of numpy's; the line tells what it says."""
    reason = type("Reason", (str,), {})("spread_out")
    written.observer.finished(msgspec.structs.replace(decision, reason=reason), outcome_of())
    assert written.lines[-1]["reason"] == "spread_out"


def test_a_change_of_health_is_a_warning(written: Written, decision: Decision) -> None:
    """The line names the endpoint, its state and the evidence."""
    written.observer.health_changed(decision.chosen, "ejected", "3 failures")
    (line,) = written.lines
    assert (line["level"], line["endpoint"], line["state"]) == ("warning", "10.0.0.11:8000", "ejected")


def test_a_passed_request_is_for_debugging(written: Written) -> None:
    """What kvpicker leaves alone is logged at debug level only."""
    written.observer.passed("unknown_path")
    assert (written.lines[0]["level"], written.lines[0]["reason"]) == ("debug", "unknown_path")
