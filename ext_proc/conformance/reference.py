"""Renders the table of the checks for the documentation."""

from __future__ import annotations

from ext_proc.conformance.modes import ALL, NONE
from ext_proc.conformance.suite import CHECKS


def reference() -> str:
    """Return the table of all checks."""
    rows = [
        f"| `{check.id}` | {check.level} | {_modes(check.modes)} | {_cell(check.requirement)} | {_cell(check.source)} |"
        for check in CHECKS
    ]
    return "\n".join(["| check | level | modes | required | source |", "|---|---|---|---|---|", *rows])


def _modes(modes: tuple[str, ...]) -> str:
    return "all" if modes == ALL else "once" if modes == NONE else " ".join(modes)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
