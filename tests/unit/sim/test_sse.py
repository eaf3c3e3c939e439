"""Server-sent events on the wire."""

from __future__ import annotations

import pytest

from ext_proc.sim.shapes import DONE, Event
from ext_proc.sim.sse import encode_event, encode_events, without_final_newline


@pytest.mark.parametrize(
    ("event", "styles", "expected"),
    [
        (Event({"a": 1}), set(), b'data: {"a":1}\n\n'),
        (Event({"a": 1}, "x"), set(), b'event: x\ndata: {"a":1}\n\n'),
        (DONE, set(), b"data: [DONE]\n\n"),
        (Event({}, "x"), {"crlf"}, b"event: x\r\ndata: {}\r\n\r\n"),
        (Event({}), {"no_space"}, b"data:{}\n\n"),
        (Event({}), {"comments"}, b": keepalive\n\ndata: {}\n\n"),
        (Event({}), {"crlf", "no_space"}, b"data:{}\r\n\r\n"),
    ],
    ids=["plain", "named", "done", "crlf", "no space", "comments", "two styles"],
)
def test_an_event_on_the_wire(event: Event, styles: set[str], expected: bytes) -> None:
    """Events are written as most engines do, or in an odd way that is still valid."""
    assert encode_event(event, frozenset(styles)) == expected


def test_events_follow_each_other() -> None:
    """Several events are their bytes one after the other."""
    assert encode_events([Event({}), DONE]) == b"data: {}\n\ndata: [DONE]\n\n"


def test_the_last_blank_line_can_be_left_out() -> None:
    """Some writers forget the end of the last event."""
    assert without_final_newline(b"data: [DONE]\r\n\r\n") == b"data: [DONE]"
