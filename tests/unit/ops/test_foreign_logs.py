"""What libraries log."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

from aiohttp.http_exceptions import BadHttpMessage

from ext_proc.ops.foreign_logs import heard
from ext_proc.ops.limited_log import LimitedLog
from ext_proc.ops.logs import LineWriter, configure


def _heard(logger: str, error: type[Exception] | None, times: int = 1) -> tuple[list[dict[str, Any]], bytes]:
    stream = io.BytesIO()
    log = LimitedLog(configure("info", "json", LineWriter(stream)), 10, clock=lambda: 0.0)
    with heard(log.say):
        for _ in range(times):
            try:
                if error is not None:
                    raise error("SECRET")
            except (ValueError, BadHttpMessage):
                logging.getLogger(logger).exception("cannot read %r", "SECRET")
            else:
                logging.getLogger(logger).warning("cannot read %r", "SECRET")
    return [json.loads(line) for line in stream.getvalue().splitlines()], stream.getvalue()


def test_a_warning_of_a_library_is_a_line() -> None:
    """It says who logged where in the code, and nothing of what."""
    (line,), text = _heard("some.library", None)
    assert (line["event"], line["library"]) == ("library_complained", "some.library")
    assert "test_foreign_logs.py" in line["at"][0]
    assert b"SECRET" not in text


def test_an_error_of_a_library_is_told_by_type_and_place() -> None:
    """A fault of our own that a library caught can be found; its message may quote a request."""
    (line,), text = _heard("asyncio", ValueError)
    assert (line["error"], line["at"][-1].split()[-1]) == ("ValueError", "_heard")
    assert b"SECRET" not in text


def test_bytes_of_strangers_are_ten_lines_a_second_without_a_trace() -> None:
    """Whoever speaks no HTTP to the admin server cannot fill the disk (I14)."""
    lines, text = _heard("aiohttp.server", BadHttpMessage, times=200)
    assert len(lines) == 10
    assert lines[0]["error"] == "BadHttpMessage"
    assert "web" not in str(lines[0]["at"])
    assert b"SECRET" not in text


def test_the_handler_goes_with_its_context() -> None:
    """Logging is as it was afterwards."""
    before = list(logging.getLogger().handlers)
    _heard("some.library", None)
    assert logging.getLogger().handlers == before
