"""Runs the tests of real engines and prints what they measured as one JSON object, on the last line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

TIMEOUT_S = 900
"""For one test; installing vLLM is part of the first."""


def main() -> int:
    """Run them; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".engines"), help="folder that keeps environments")
    parser.add_argument("--without-peers", action="store_true", help="leave the side-by-side run out")
    arguments, others = parser.parse_known_args()
    folder = Path(__file__).parent
    chosen = ["--ignore", str(folder / "test_side_by_side.py")] if arguments.without_peers else []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvpicker-engines-") as scratch:
        results = Path(scratch, "results.json")
        os.environ["ENGINES_CACHE"] = str(arguments.cache.absolute())
        os.environ["ENGINES_RESULTS"] = str(results)
        code = pytest.main([str(folder), f"--timeout={TIMEOUT_S}", "-s", "--durations=5", *chosen, *others])
        told = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    told = {"passed": code == 0, "seconds": round(time.monotonic() - began), **told}
    sys.stdout.write(json.dumps(told) + "\n")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
