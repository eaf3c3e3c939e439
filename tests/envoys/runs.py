"""Runs pytest in a process group of its own, what failed a second time, and counts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TEST_S = 120
"""For one test."""

SUITE_S = 900.0
"""For one suite, each time."""


class Result(NamedTuple):
    """What became of tests.

    Attributes:
        passed: how many passed, at the second try too.
        skipped: how many do not apply.
        failed: those that failed twice, or why nothing is known of any.
        second_try: those that passed only then: a busy machine may be all that is wrong with them.
    """

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    second_try: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(self.passed)]
        for name, count in (("failed", self.failed), ("second try", self.second_try)):
            parts += [f"{len(count)} {name}"] if count else []
        return ", ".join([*parts, f"{self.skipped} skipped"] if self.skipped else parts)


def run_tests(chosen: Sequence[str], environment: Mapping[str, str], seconds: float = SUITE_S) -> tuple[Result, str]:
    """Run tests, and once more those that failed; returns what became of them, and all that pytest said.

    Args:
        chosen: arguments of pytest.
        environment: of its process.
        seconds: how long they may take, each time.
    """
    with tempfile.TemporaryDirectory(prefix="kvpicker-envoys-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pytest", *chosen, "-q", f"--timeout={TEST_S}", "-o", f"cache_dir={folder}"]
        first, said = _attempt(command, environment, folder / "first.xml", seconds)
        if first is None or not first.failed:
            return first or Result(failed=("no report",)), said
        again, more = _attempt([*command, "--last-failed"], environment, folder / "second.xml", seconds)
        if again is None:
            return first, said + more
        mended = tuple(test for test in first.failed if test not in again.failed)
        return Result(first.passed + len(mended), first.skipped, again.failed, mended), said + more


def _attempt(
    command: Sequence[str], environment: Mapping[str, str], report: Path, seconds: float
) -> tuple[Result | None, str]:
    with report.with_suffix(".log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, f"--junitxml={report}"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.write(f"stopped after {seconds:g} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):  # what a run that was stopped may have left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return (read_report(report) if report.is_file() else None), log.read()


def read_report(report: Path) -> Result:
    """Read what pytest wrote of a run; tests that could not even be collected have failed."""
    passed = skipped = 0
    failed = []
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  pytest's own
        kinds = {part.tag for part in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Result(passed, skipped, tuple(dict.fromkeys(failed)))
