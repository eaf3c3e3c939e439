"""Prints the tables of log events and metrics for the documentation: `python -m ext_proc.ops.reference`."""

from __future__ import annotations

import sys

from ext_proc.ops import events, families


def reference() -> str:
    """Render both tables as markdown."""
    return f"{events.reference()}\n{families.reference()}"


if __name__ == "__main__":
    sys.stdout.write(reference())
