"""Reads durations as people write them: `90`, `90s`, `10m`, `1h`."""

from __future__ import annotations

import re

LONGEST_S = 7 * 86_400.0

_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)?", re.ASCII)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Return the seconds of a duration; a number alone is seconds.

    Raises ValueError with advice for anything else, and for more than seven days.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a duration; write a number and ms, s, m, h or d, as in 90s or 10m")
    value = float(found[1]) * _UNITS[found[2] or "s"]
    if value > LONGEST_S:
        raise ValueError("longer than seven days")
    return value
