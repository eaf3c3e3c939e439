"""Runs the tests of Envoy's configuration on every version of Envoy; a table, and the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ext_proc.bootstrap.versions import BUILDS, OLDEST
from tests.envoys.builds import CACHE, install, path_with
from tests.envoys.runs import Result, run_tests
from tests.envoys.suites import SUITES, Suite, belongs

AT_ONCE = 2
"""Suites wait most of the time; more of them at once would wait for each other on two cores."""

Told = Mapping[tuple[str, str], Result]
"""What became of suites, by version and name."""


def main() -> int:
    """Run them; return 1 if a test failed."""
    arguments = _arguments()
    cache = arguments.cache.absolute()
    if arguments.install_oldest:
        install(OLDEST, cache)
        return 0
    began = time.monotonic()
    versions = [name for name in BUILDS if name in (arguments.version or BUILDS)]
    suites = [suite for suite in SUITES if suite.name in (arguments.suite or [suite.name])]
    binaries: dict[str, Path | str] = {version: _binary(version, cache) for version in versions}
    asked = [(v, s) for s in suites for v in versions if belongs(s, v, whole=arguments.whole or bool(arguments.suite))]
    with ThreadPoolExecutor(arguments.at_once) as threads:
        results = threads.map(lambda one: _run(one[1], one[0], binaries[one[0]], cache), asked)
        told = {(version, suite.name): result for (version, suite), result in zip(asked, results, strict=True)}
    sys.stdout.write(f"\n{table(told, versions, suites)}\n\n")
    found = summary(told, versions)
    sys.stdout.write(json.dumps({**found, "seconds": round(time.monotonic() - began)}) + "\n")
    return 0 if found["passed"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.envoys", description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps the builds")
    parser.add_argument("--version", action="append", choices=BUILDS, help="only this one; repeat it for more")
    names = [suite.name for suite in SUITES]
    parser.add_argument("--suite", action="append", choices=names, help="only these tests, on all of those versions")
    parser.add_argument("--whole", action="store_true", help="all tests on versions between oldest and newest too")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="suites that run at one time")
    parser.add_argument("--install-oldest", action="store_true", help="install the oldest version and run nothing")
    return parser.parse_args()


def _binary(version: str, cache: Path) -> Path | str:
    """Return the build of a version, or why there is none."""
    try:
        return install(version, cache)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"not installed: {error}"


def _run(suite: Suite, version: str, binary: Path | str, cache: Path) -> Result:
    if isinstance(binary, str):
        return Result(failed=(binary,))
    environment = {
        **os.environ,
        "PATH": path_with(binary),
        "ENVOYS_CACHE": str(cache),
        "KVPICKER_PROFILE": suite.profile,
    }
    began = time.monotonic()
    result, said = run_tests([*suite.files, "-m", "envoy and not oldest_envoy"], environment)
    took = time.monotonic() - began
    said = said if result.failed or result.second_try else ""
    sys.stdout.write(f"{said}Envoy {BUILDS[version]}, {suite.name}: {result} ({took:.0f} s)\n")
    sys.stdout.flush()
    return result


def table(told: Told, versions: Sequence[str], suites: Sequence[Suite]) -> str:
    """Write a row for each version and a column for each suite: what passed, else what else became of tests."""
    rows = [["Envoy", *(suite.name for suite in suites)]]
    rows += [[BUILDS[version], *(str(told.get((version, s.name), "")) for s in suites)] for version in versions]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]])


def summary(told: Told, versions: Sequence[str]) -> dict[str, object]:
    """Add the results up."""
    every = [(f"{version} {suite}", result) for (version, suite), result in told.items()]
    return {
        "passed": all(result.passed and not result.failed for _, result in every),
        "tests": sum(result.passed for _, result in every),
        "failed": [f"{where}: {test}" for where, result in every for test in result.failed],
        "second_try": [f"{where}: {test}" for where, result in every for test in result.second_try],
        "envoys": {BUILDS[v]: {s: str(result) for (name, s), result in told.items() if name == v} for v in versions},
    }


if __name__ == "__main__":
    raise SystemExit(main())
