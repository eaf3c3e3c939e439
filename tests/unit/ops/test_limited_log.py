"""The log that all of kvpicker writes to."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest

from ext_proc.core.model import Ending
from ext_proc.ops.events import Event
from ext_proc.ops.limited_log import LimitedLog
from ext_proc.ops.logs import LineWriter, configure


class Written:
    """A log with a clock that is set by hand, and what came of it."""

    def __init__(self, requests_per_second: int | None = None, level: Any = "info") -> None:
        self.now = 0.0
        self.stream = io.BytesIO()
        self.held_back: Counter[str] = Counter()
        self.log = LimitedLog(
            configure(level, "json", LineWriter(self.stream)),
            10,
            requests_per_second,
            lambda event: self.held_back.update([event]),
            lambda: self.now,
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Read what was written."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_each_value_of_its_field_is_a_kind_of_its_own() -> None:
    """A hundred engines without metrics hide no name that cannot be looked up; what is held back is counted."""
    written = Written()
    for number in range(100):
        written.log.say(Event.SOURCE_FAILED, source="metrics", endpoint=f"10.0.0.{number}:8000")
    written.log.say(Event.SOURCE_FAILED, source="dns", name="engines")
    assert [line["source"] for line in written.lines] == ["metrics"] * 10 + ["dns"]
    assert written.held_back == {"source_failed": 90}


@pytest.mark.parametrize("event", [event for event in Event if event.kind is None], ids=lambda event: event.name_)
def test_some_events_are_never_held_back(event: Event) -> None:
    """What operators ordered, and what became of their files, is a record and complete."""
    written = Written()
    for _ in range(50):
        written.log.say(event, endpoint="10.0.0.11:8000")
    assert len(written.lines) == 50
    assert Event.LIFECYCLE_CHANGED.kind is None


def test_the_end_of_a_flood_is_a_line() -> None:
    """Nobody has to wait for the next line of the kind to learn how many were missing."""
    written = Written()
    for _ in range(15):
        written.log.say(Event.REQUEST_REFUSED, reason="rate_limited")
    written.log.report()
    assert len(written.lines) == 10
    written.now = 2.5
    written.log.report()
    last = written.lines[-1]
    assert (last["event"], last["level"]) == ("lines_suppressed", "warning")
    assert (last["kind"], last["suppressed"]) == ("request_refused rate_limited", 5)


def test_lines_of_requests_can_be_limited_too() -> None:
    """By default each is written; with a limit the others are counted, apart from those that failed."""
    written = Written()
    assert [written.log.admit_request(Ending.OK) for _ in range(100)] == [0] * 100
    limited = Written(requests_per_second=20)
    assert [limited.log.admit_request(Ending.OK) for _ in range(100)].count(0) == 20
    assert limited.log.admit_request(Ending.CONNECT_FAILURE) == 0
    limited.log.close()
    assert [line["suppressed"] for line in limited.lines] == [80]
    assert limited.held_back == {"request_finished": 80}


def test_what_is_not_written_anyway_is_not_held_back() -> None:
    """Lines below the level take nothing from the limit and are no loss."""
    written = Written(level="warning")
    for _ in range(50):
        written.log.say(Event.REQUEST_REFUSED, reason="rate_limited")
    assert written.log.admit_request(Ending.OK) is None
    assert not written.held_back
