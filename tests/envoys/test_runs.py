"""Tests of what runs the tests of Envoys."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ext_proc.bootstrap.versions import BUILDS, NEWEST, OLDEST
from tests.envoys.__main__ import summary, table
from tests.envoys.runs import Result, _attempt, run_tests
from tests.envoys.suites import SUITES, belongs
from tests.waiting import until

SECOND = """
import pathlib, pytest
marker = pathlib.Path(__file__).with_suffix(".marker")

def test_one():
    pass

def test_two():
    seen = marker.exists()
    marker.touch()
    assert seen

def test_three():
    raise ValueError

@pytest.mark.skip
def test_four():
    pass
"""


def test_what_passes_at_the_second_try_is_told_apart(tmp_path: Path) -> None:
    """A test that fails once has passed, and is named; one that fails twice has failed."""
    file = tmp_path / "test_made.py"
    file.write_text(SECOND)
    result, said = run_tests([str(file), "-c", os.devnull, "--rootdir", str(tmp_path)], os.environ)
    assert result == Result(2, 1, ("test_made::test_three",), ("test_made::test_two",)), said
    assert str(result) == "2, 1 failed, 1 second try, 1 skipped"


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_suite_that_hangs_ends_with_all_it_started(tmp_path: Path) -> None:
    """Nothing of it is left, and it has failed."""
    written = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 60 & echo $! > {written}; wait"]
    result, said = await asyncio.to_thread(_attempt, command, os.environ, tmp_path / "report.xml", 2.0)
    assert (result, said) == (None, "stopped after 2 s\n")
    await until(lambda: is_gone(int(written.read_text())))


def test_a_suite_without_a_report_has_failed() -> None:
    """Whatever the reason is."""
    assert run_tests(["--no-such-option"], os.environ)[0] == Result(failed=("no report",))


@pytest.mark.parametrize("version", BUILDS)
def test_the_oldest_and_the_newest_run_everything(version: str) -> None:
    """Those between them run what differs, or all if asked."""
    run = {suite.name for suite in SUITES if belongs(suite, version, whole=False)}
    missing = {suite.name for suite in SUITES} - run
    assert missing == (set() if version in {OLDEST, NEWEST} else {"buffered", "duplex"})
    assert all(belongs(suite, version, whole=True) for suite in SUITES)


def test_the_table_has_a_cell_for_each_version_and_suite() -> None:
    """What was not run is empty, and one failure fails the whole."""
    lean, configuration = (next(suite for suite in SUITES if suite.name == name) for name in ("lean", "configuration"))
    told = {("1.36", "lean"): Result(3, 1), ("1.37", "configuration"): Result(2, 0, ("a::b",))}
    assert table(told, ["1.36", "1.37"], [lean, configuration]).splitlines() == [
        "| Envoy  | lean         | configuration |",
        "|--------|--------------|---------------|",
        "| 1.36.4 | 3, 1 skipped |               |",
        "| 1.37.0 |              | 2, 1 failed   |",
    ]
    found = summary(told, ["1.36", "1.37"])
    assert (found["passed"], found["failed"], found["tests"]) == (False, ["1.37 configuration: a::b"], 5)
