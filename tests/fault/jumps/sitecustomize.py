"""Lets the wall clock of this process jump by what the file `clock` beside its configuration says."""

import sys
import time
from pathlib import Path

_real = time.time
_file = Path(sys.argv[-1]).parent / "clock" if len(sys.argv) > 1 else Path("/nonexistent")


def _jumped() -> float:
    try:
        return _real() + float(_file.read_text())
    except (OSError, ValueError):
        return _real()


time.time = _jumped
