"""What a simulated engine received outlives it in a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ext_proc.sim.request_log import RequestLog


def test_requests_are_written_before_they_are_answered(tmp_path: Path) -> None:
    """Each line is there at once, with the id and the digest of the body; none is lost by an engine's death."""
    log, path = RequestLog(0), tmp_path / "requests"
    with log.writing_to(path):
        for number in range(3):
            log.add("POST", "/v1/chat/completions", [(b"X-Request-Id", b"r%d" % number)], b"body")
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert [line["request_id"] for line in lines] == [f"r{done}" for done in range(number + 1)]
            assert lines[-1]["body_sha256"] == hashlib.sha256(b"body").hexdigest()
    log.add("POST", "/v1/chat/completions", [], b"body")
    assert len(path.read_text().splitlines()) == 3
    assert log.find() == []


def test_without_a_file_nothing_is_written() -> None:
    """A log that is told no file keeps what it keeps, and no more."""
    log = RequestLog(1)
    with log.writing_to(None):
        log.add("GET", "/health", [], b"")
    assert [entry["path"] for entry in log.find()] == ["/health"]
