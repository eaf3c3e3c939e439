"""`make test-schemas`, its second half: the chart by Helm itself, which must make of it what our own reader makes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.unit.deploy.go_template import render
from tests.unit.deploy.test_chart import CHART, SERVICE, TEMPLATES, data

HELM = """
import json, sys
import helm_python
chart, values = sys.argv[1], json.loads(sys.argv[2])
linted = helm_python.lint(chart, values, strict=True)
with helm_python.Chart.load(chart) as loaded:
    made = loaded.render(values, name="kvpicker", namespace="inference")
print(json.dumps({"errors": linted["errors"], "made": made}))
"""

WRONG = {"replicas": 0}
"""Values that the schema refuses."""


def main() -> int:
    """Lint and render with some values; returns 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="a Python that has helm-python-sdk")
    python = parser.parse_args().python
    failures = [failure for values in ({}, SERVICE) for failure in _problems(python, values)]
    if not _helm(python, WRONG)["errors"]:
        failures.append(f"{WRONG} are taken")
    for failure in failures:
        sys.stdout.write(f"{failure}\n")
    sys.stdout.write(f"{2 * len(TEMPLATES) + 3 - len(failures)} passed, {len(failures)} failed\n")
    return 1 if failures else 0


def _problems(python: Path, values: dict[str, Any]) -> list[str]:
    if "follow" in values:  # what is not named stays, in Helm as here
        values = values | {"follow": {"inferencePool": "", "endpointSlices": False} | values["follow"]}
    found = _helm(python, values)
    if found["errors"]:
        return [f"Helm: {error}" for error in found["errors"]]
    problems = []
    for path in TEMPLATES:
        theirs = list(yaml.safe_load_all(found["made"][f"{CHART.name}/templates/{path.name}"]))
        ours = list(yaml.safe_load_all(render(path.read_text("utf-8"), data(**values))))
        if [each for each in theirs if each] != [each for each in ours if each]:
            problems.append(f"{path.name}: Helm makes something else of it than our reader")
    return problems


def _helm(python: Path, values: dict[str, Any]) -> dict[str, Any]:
    command = [str(python), "-c", HELM, str(CHART), json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        return {"errors": [done.stderr.strip().splitlines()[-1]], "made": {}}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
