"""Prints the tables of log events and metrics for the documentation: `python -m ext_proc.ops.reference`."""

from __future__ import annotations

import sys

from ext_proc.core.misfits import MENDS
from ext_proc.ops import events, families


def reference() -> str:
    """Render both tables as markdown."""
    return f"{events.reference()}\n{families.reference()}"


def misfits() -> str:
    """Render the table of what `envoy_misfit` tells."""
    rows = [f"| `{misfit}` | {told.meaning} | {told.mend} |" for misfit, told in MENDS.items()]
    return "\n".join(["| `misfit` | what it does | mend |", "|---|---|---|", *rows])


if __name__ == "__main__":
    sys.stdout.write(reference())
