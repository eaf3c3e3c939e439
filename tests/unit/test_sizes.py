"""What is read at once must not be too long to be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ext_proc"
FILE_LINES = 360
FUNCTION_LINES = 60


def lengths() -> Iterator[tuple[str, int, int]]:
    """Measure files and functions of the package, what is generated apart: name, lines and limit."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "_pb":
            continue
        name, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
        yield name, len(text.splitlines()), FILE_LINES
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{name} {node.name}", node.end_lineno - node.lineno + 1, FUNCTION_LINES


def test_nothing_is_too_long() -> None:
    """A file is read in one go, and a function on one screen."""
    assert [(name, lines) for name, lines, limit in lengths() if lines > limit] == []
