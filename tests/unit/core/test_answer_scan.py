"""Token counts in answers, however they are split."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.answer_scan import AnswerScan
from ext_proc.core.model import Usage

CHUNK = b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":" say \\"usage\\": {}"}}],"usage":null}\n\n'
COUNTS = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 96}}
OPENAI = CHUNK * 40 + b"data: " + json.dumps({"choices": [], "usage": COUNTS}).encode() + b"\n\ndata: [DONE]\n\n"
CONTINUOUS = b"".join(
    b"data: " + json.dumps({"usage": {"prompt_tokens": 100, "completion_tokens": number}}).encode() + b"\n\n"
    for number in range(1, 301)
)
START = {"type": "message_start", "message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 96}}}
ANTHROPIC = (
    b"event: message_start\ndata: "
    + json.dumps(START).encode()
    + b"\n\n"
    + b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n' * 400
    + b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n'
)
INSIDE = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 96}, "output_tokens": 7}
RESPONSES = (
    b'data: {"type":"response.created","response":{"id":"resp_a1"}}\n\n'
    b"data: "
    + json.dumps(
        {"type": "response.completed", "response": {"id": "resp_a1", "output": ["x" * 40_000], "usage": INSIDE}}
    ).encode()
)
WHOLE = json.dumps(
    {"id": "c-1", "choices": [{"message": {"content": "w " * 3000}}], "usage": COUNTS}, indent=1
).encode()
EXPECTED = Usage(100, 7, 96)


def scanned(answer: bytes, cuts: list[int], *, events: bool = True, wants_id: bool = False) -> AnswerScan:
    """Scan an answer in pieces."""
    scan = AnswerScan(events=events, wants_id=wants_id)
    edges = [0, *sorted(cut % (len(answer) + 1) for cut in cuts), len(answer)]
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007  the point is the pairs
        scan.feed(answer[start:end])
    scan.finish()
    return scan


@pytest.mark.parametrize(
    ("answer", "events", "usage"),
    [
        (OPENAI, True, EXPECTED),
        (CONTINUOUS, True, Usage(100, 300, None)),
        (ANTHROPIC, True, EXPECTED),
        (RESPONSES, True, EXPECTED),
        (WHOLE, False, EXPECTED),
        (b"", True, Usage()),
        (CHUNK * 3, True, Usage()),
    ],
    ids=["openai", "continuous", "anthropic", "responses", "json", "empty", "none"],
)
@given(cuts=st.lists(st.integers(0, 1_000_000), max_size=60))
@settings(max_examples=40, deadline=None)
def test_counts_are_found_however_an_answer_is_split(
    answer: bytes, usage: Usage, cuts: list[int], *, events: bool
) -> None:
    """At any place, between any two bytes."""
    assert scanned(answer, cuts, events=events).usage == usage


@given(size=st.integers(1, 5))
@settings(max_examples=5, deadline=None)
def test_pieces_of_a_few_bytes_will_do(size: int) -> None:
    """Down to one byte a piece."""
    assert scanned(OPENAI, list(range(0, len(OPENAI), size))).usage == EXPECTED


@pytest.mark.parametrize(
    "usage",
    ['"oops"', "null", "[1]", '{"prompt_tokens":"9"}', '{"prompt_tokens":-4}', '{"prompt_tokens":99999999999}', "{"],
)
def test_nonsense_is_no_usage(usage: str) -> None:
    """Whatever an engine writes there, nothing is believed and nothing raises."""
    assert scanned(f'{{"usage":{usage}}}'.encode(), [9], events=False).usage == Usage()


def test_a_zero_replaces_nothing() -> None:
    """Some streams end with one."""
    answer = b'data: {"usage":{"prompt_tokens":5}}\n\ndata: {"usage":{"prompt_tokens":0}}\n\n'
    assert scanned(answer, []).usage.prompt_tokens == 5


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (CHUNK * 60 + b'data: {"error":{"message":"x"}}\n\n', True),
        (CHUNK * 60 + b'event: error\ndata: {"type": "error", "error": {}}\n\n', True),
        (CHUNK * 60 + b'data: {"error":null,"choices":[]}\n\n', False),
        (CHUNK * 60, False),
    ],
)
@given(cuts=st.lists(st.integers(0, 1_000_000), max_size=20))
@settings(max_examples=20, deadline=None)
def test_an_error_within_a_stream_is_noticed(answer: bytes, cuts: list[int], *, failed: bool) -> None:
    """In the forms of both APIs, however it is split."""
    assert bool(scanned(answer, cuts).failed) is failed


@pytest.mark.parametrize(
    ("answer", "has_ended"),
    [
        (OPENAI + b"data: [DONE]\n\n", True),
        (CHUNK * 300 + b"data: [DONE]\n\n", True),
        (CHUNK * 300 + b'event: message_stop\ndata: {"type": "message_stop"}\n\n', True),
        (b'event: response.incomplete\r\ndata: {"response": {}}\r\n\r\n', True),
        (CHUNK * 300, False),
        (b'data: {"delta": "\\ndata: [DONE]\\nevent: message_stop"}\n\n', False),
    ],
    ids=["openai", "long", "anthropic", "responses", "none", "quoted in text"],
)
@given(cuts=st.lists(st.integers(0, 1_000_000), max_size=20))
@settings(max_examples=20, deadline=None)
def test_the_last_event_is_noticed(answer: bytes, cuts: list[int], *, has_ended: bool) -> None:
    """Clients may leave behind it and had all of their answer."""
    assert scanned(answer, cuts).has_ended is has_ended


@given(cuts=st.lists(st.integers(0, 100), max_size=20))
def test_the_id_of_a_response_is_found_if_it_is_wanted(cuts: list[int]) -> None:
    """It stands at the beginning."""
    assert scanned(RESPONSES, cuts, wants_id=True).response_id == "resp_a1"
    assert scanned(RESPONSES, cuts).response_id == ""


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("piece", [b'"usage":{"a":' * 50, b"x" * 2_000_000, b'{"usage":' + b"{" * 9_000, b"x"])
def test_memory_is_bounded(piece: bytes, events: bool) -> None:
    """Whatever comes, some kilobytes are kept."""
    scan = AnswerScan(events=events, wants_id=True)
    for _ in range(200 if len(piece) < 10_000 else 4):
        scan.feed(piece)
    kept = len(scan._rest) + sum(map(len, scan._window)) + len(scan._head or b"")
    assert kept <= 16_384 + len(piece[:16_384]) + 16_384 + 4_096


@given(st.lists(st.integers(0, 10_000), max_size=6), st.text(" \n\t", max_size=20))
def test_a_json_answer_is_whole_if_it_ends_as_it_begins(cuts: list[int], spaces: str) -> None:
    """However it is split, and whatever white space is around it; one that misses its end is cut."""
    around = spaces.encode()
    assert not scanned(around + WHOLE + around, cuts, events=False).is_cut
    assert not scanned(b"[1, 2]" + around, cuts, events=False).is_cut
    assert scanned(around + WHOLE[:-10] + around, cuts, events=False).is_cut


@pytest.mark.parametrize("answer", [b"", b"  ", b"5", b'"text"', b"null"])
def test_what_is_no_object_is_not_cut(answer: bytes) -> None:
    """Nothing is known of its end; nor of that of an event stream."""
    assert not scanned(answer, [], events=False).is_cut
    assert not scanned(b"{" + answer, [], events=True).is_cut


HUGE = b'"usage":{"by_request":[' + b'{"n":1},' * 700 + b'{"usage":{"prompt_tokens":3}}]}'


@given(cuts=st.lists(st.integers(0, 30_000), max_size=6))
@pytest.mark.parametrize("events", [True, False], ids=["events", "json"])
def test_an_endless_object_of_that_name_hides_no_later_one(events: bool, cuts: list[int]) -> None:
    """What is too long for counts is passed over, wherever the pieces are cut."""
    answer = b"data: {" + HUGE + b"}\n\n" + OPENAI if events else b"{" + HUGE + b"," + WHOLE.lstrip()[1:]
    assert scanned(answer, cuts, events=events).usage == EXPECTED
