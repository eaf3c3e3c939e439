"""Answers of many engines, as a stream in full duplex shows them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.answer_scan import AnswerScan
from ext_proc.core.model import Ending
from ext_proc.core.status_endings import ending_of_failure, ending_of_status
from tests.unit.core.answer_cases import AnswerCase, load


def _ending(scan: AnswerScan) -> Ending:
    if scan.failed:
        return ending_of_failure(scan.failed)
    return Ending.CUT if scan.is_cut else Ending.OK


@pytest.mark.parametrize("case", load(), ids=str)
@given(size=st.integers(1, 200) | st.just(100_000))
@settings(max_examples=6, deadline=None)
def test_answers_are_understood_however_they_are_split(case: AnswerCase, size: int) -> None:
    """Counts are the engine's last sane ones, and an error says whose fault it is."""
    events = case.type.lower().startswith("text/event-stream")
    scan = AnswerScan(events=events, wants_id=case.path.endswith("/responses"))
    body = case.data()
    for start in range(0, len(body), size):
        scan.feed(body[start : start + size])
    scan.finish()
    usage = scan.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == case.usage
    assert _ending(scan) == case.ending


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (100, "ok"),
        (204, "ok"),
        (307, "ok"),
        (400, "client_error"),
        (404, "client_error"),
        (422, "client_error"),
        (429, "overloaded"),
        (500, "server_error"),
        (501, "client_error"),
        (502, "server_error"),
        (503, "overloaded"),
        (504, "server_error"),
        (529, "overloaded"),
    ],
)
def test_a_status_tells_whose_fault_it_is(status: int, ending: str) -> None:
    """Clients' faults and load are no illness, and what an engine never does is no fault of its own."""
    assert ending_of_status(status) == ending
