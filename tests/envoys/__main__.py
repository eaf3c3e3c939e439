"""Runs the tests of Envoy's configuration on every version of Envoy; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ext_proc.bootstrap.options import PROFILES
from ext_proc.bootstrap.versions import BUILDS, OLDEST
from tests.envoys.builds import CACHE, install, path_with

TIMEOUT_S = 120
"""For one test."""

SUITE_TIMEOUT_S = 1_800


class Suite(NamedTuple):
    """Tests that are run on each version."""

    name: str
    files: tuple[str, ...]
    profile: str = "lean"


SUITES = (
    Suite("configuration", ("tests/unit/bootstrap",)),
    Suite("profiles", ("tests/wire/test_profiles.py",)),
    Suite("gateways", ("tests/wire/duplex/test_shapes.py", "tests/wire/duplex/test_duplex.py")),
    Suite("up", ("tests/local/test_up.py::test_the_pasted_line_gets_an_answer",)),
    *(Suite(profile, ("tests/wire/test_requests.py", "tests/wire/test_answers.py"), profile) for profile in PROFILES),
)


def main() -> int:
    """Run them; return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.envoys", description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps the builds")
    parser.add_argument("--version", action="append", choices=BUILDS, help="only this one; repeat it for more")
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES], help="only these tests")
    parser.add_argument("--install-oldest", action="store_true", help="install the oldest version and run nothing")
    arguments = parser.parse_args()
    cache = arguments.cache.absolute()
    if arguments.install_oldest:
        install(OLDEST, cache)
        return 0
    began = time.monotonic()
    told: dict[str, dict[str, Any]] = {}
    for name in arguments.version or BUILDS:
        told[name] = {"build": BUILDS[name], **dict(_run(name, cache, arguments.suite))}
    counts = [count for row in told.values() for count in row.values() if isinstance(count, dict)]
    passed = all(not count["failed"] and count["passed"] for count in counts)
    sys.stdout.write(json.dumps({"passed": passed, "seconds": round(time.monotonic() - began), "envoys": told}) + "\n")
    return 0 if passed else 1


def _run(name: str, cache: Path, chosen: list[str] | None) -> Iterator[tuple[str, dict[str, int]]]:
    binary = install(name, cache)
    for suite in SUITES:
        if chosen is None or suite.name in chosen:
            sys.stdout.write(f"Envoy {BUILDS[name]}: {suite.name}\n")
            sys.stdout.flush()
            yield suite.name, _run_suite(suite, binary, cache)


def _run_suite(suite: Suite, binary: Path, cache: Path) -> dict[str, int]:
    environment = {
        **os.environ,
        "PATH": path_with(binary),
        "ENVOYS_CACHE": str(cache),
        "KVPICKER_PROFILE": suite.profile,
    }
    with tempfile.TemporaryDirectory(prefix="kvpicker-envoys-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", *suite.files, "-q", "-m", "envoy and not oldest_envoy"]
        command += [f"--timeout={TIMEOUT_S}", f"--junitxml={report}"]
        try:
            subprocess.run(command, env=environment, check=False, timeout=SUITE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"stopped after {SUITE_TIMEOUT_S} s\n")
        return _counts(report)


def _counts(report: Path) -> dict[str, int]:
    """Read pytest's report; nothing passed if there is none."""
    if not report.is_file():
        return {"passed": 0, "failed": 0, "skipped": 0}
    suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314  pytest's own
    assert suite is not None
    number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return {
        "passed": number["tests"] - failed - number["skipped"],
        "failed": failed,
        "skipped": number["skipped"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
