"""Prints the table of the fields of a report for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec

from ext_proc.analyze.report import Report
from ext_proc.config.reference import attributes


def reference() -> str:
    """Render the fields as a markdown table, nested ones under the path that leads to them."""
    return "\n".join(["| field | meaning |", "|---|---|", *_rows(Report, "")]) + "\n"


def _rows(struct: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    meanings = attributes(struct)
    for field in msgspec.structs.fields(struct):
        path = f"{prefix}{field.name}"
        yield f"| `{path}` | {meanings[field.name]} |"
        inner, is_list = _nested(field.type)
        if inner is not None:
            yield from _rows(inner, f"{path}[]." if is_list else f"{path}.")


def _nested(annotation: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """Find the struct that a field holds, and whether it holds several."""
    is_list = get_origin(annotation) is tuple
    held = get_args(annotation)[0] if is_list else annotation
    is_struct = isinstance(held, type) and issubclass(held, msgspec.Struct)
    return (held if is_struct else None), is_list
