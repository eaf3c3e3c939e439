"""The logger."""

import io
import json

import pytest
import structlog

from ext_proc.ops.logs import LineWriter, configure


def test_a_json_line_has_time_level_event_and_fields() -> None:
    """A line is one JSON object whose first fields are always the same."""
    stream = io.BytesIO()
    configure("info", "json", LineWriter(stream)).info("server_started", address="127.0.0.1:9002", ports=[1, 2])
    line = json.loads(stream.getvalue())
    assert list(line) == ["time", "level", "event", "address", "ports"]
    assert line["time"].endswith("Z")
    assert (line["level"], line["event"]) == ("info", "server_started")


@pytest.mark.parametrize(("level", "written"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)], ids=str)
def test_lines_below_the_level_are_not_written(level: str, written: int) -> None:
    """The level is the least severe one that is written."""
    stream = io.BytesIO()
    log = configure(level, "json", LineWriter(stream))
    log.debug("a")
    log.info("b")
    log.warning("c")
    assert stream.getvalue().count(b"\n") == written


def test_one_event_is_one_line_whatever_it_holds() -> None:
    """Line ends in values cannot forge another line."""
    stream = io.BytesIO()
    configure("info", "json", LineWriter(stream)).info("a", model='x\n{"event":"forged"}')
    assert stream.getvalue().count(b"\n") == 1


def test_text_that_is_not_unicode_is_logged_escaped() -> None:
    """A lone surrogate, which JSON of clients may hold, does not lose the line."""
    stream = io.BytesIO()
    configure("info", "json", LineWriter(stream)).info("a", model="x\ud800", count=1)
    assert json.loads(stream.getvalue())["model"] == "x\\ud800"


def test_a_value_without_json_form_is_logged_as_text() -> None:
    """An object that JSON does not know does not lose the line."""
    stream = io.BytesIO()
    configure("info", "json", LineWriter(stream)).info("a", value=1j)
    assert json.loads(stream.getvalue())["value"] == "1j"


def test_console_lines_are_for_people() -> None:
    """Console format is plain text without colours where the stream is no terminal."""
    stream = io.BytesIO()
    configure("info", "console", LineWriter(stream)).warning("health_changed", endpoint="10.0.0.11:8000")
    text = stream.getvalue().decode()
    assert "warning" in text
    assert "endpoint=10.0.0.11:8000" in text
    assert "\x1b" not in text


def test_two_loggers_do_not_know_of_each_other() -> None:
    """A logger changes no global setting of structlog."""
    loud, quiet = io.BytesIO(), io.BytesIO()
    configure("debug", "json", LineWriter(loud)).debug("a")
    configure("error", "json", LineWriter(quiet)).info("b")
    assert (loud.getvalue().count(b"\n"), quiet.getvalue()) == (1, b"")
    assert not structlog.is_configured()


class Full(io.BytesIO):
    """A stream without room."""

    def write(self, _data: object) -> int:
        """Fail as a full disk does."""
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        """Fail as a closed pipe does."""
        raise BrokenPipeError


def test_a_stream_that_fails_loses_its_lines_only() -> None:
    """A full disk or a reader that left is counted and disturbs nobody."""
    lines = LineWriter(Full())
    log = configure("info", "json", lines)
    log.info("request_finished")
    log.error("exchange_failed")
    assert lines.failing
    assert lines.lost == 2


def test_a_stream_that_recovers_is_no_longer_failing() -> None:
    """Losing lines is a state that ends with the first line that is written."""
    lines = LineWriter(io.BytesIO())
    lines.failing = True
    configure("info", "json", lines).info("a")
    assert not lines.failing


class Unflushable(io.BytesIO):
    """A stream that cannot be flushed for a while."""

    full = True

    def flush(self) -> None:
        """Fail."""
        if self.full:
            raise BrokenPipeError


def test_lines_that_wait_are_told_of() -> None:
    """Whoever flushes sleeps until there is something to flush, and tries again what failed."""
    stream = Unflushable()
    lines = LineWriter(stream)
    assert not lines.waits.is_set()
    lines.info(b"a")
    assert lines.waits.is_set()
    lines.flush()
    assert lines.waits.is_set()
    stream.full = False
    lines.flush()
    assert not lines.waits.is_set()


def test_lines_that_are_made_later_keep_their_place() -> None:
    """They are made before a line that follows them is written, and when they are flushed at the latest."""
    stream = io.BytesIO()
    lines = LineWriter(stream)
    lines.later(str.encode, "first")
    assert lines.waits.is_set()
    assert stream.getvalue() == b""
    lines.error(b"second")
    lines.later(str.encode, "third")
    lines.flush()
    assert stream.getvalue() == b"first\nsecond\nthird\n"


def test_a_line_that_cannot_be_made_costs_no_other() -> None:
    """It is counted as lost, and whoever told it hears nothing of that."""
    stream = io.BytesIO()
    lines = LineWriter(stream)
    for text in ("first", "\ud800", "third"):
        lines.later(str.encode, text)
    lines.flush()
    assert stream.getvalue() == b"first\nthird\n"
    assert lines.lost == 1


def test_few_lines_wait_to_be_made() -> None:
    """A burst holds no more in memory than some dozens of them, and a full disk loses each that was to be written."""
    stream, full = io.BytesIO(), LineWriter(Full())
    lines = LineWriter(stream)
    for number in range(1000):
        lines.later(str.encode, str(number))
        full.later(str.encode, str(number))
    assert stream.getvalue().count(b"\n") > 900
    lines.flush()
    full.flush()
    assert stream.getvalue().split() == [b"%d" % number for number in range(1000)]
    assert full.lost == 1000
