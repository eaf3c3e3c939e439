"""Renders the tables of the documentation from the code: `python -m ext_proc.reference` rewrites them."""

from __future__ import annotations

import argparse
import inspect
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ext_proc import cli, config
from ext_proc.analyze import reference as analysis
from ext_proc.bootstrap import reference as envoys
from ext_proc.conformance import reference as conformance
from ext_proc.core.strategies import GROUP
from ext_proc.epp import reference as endpoint_picker
from ext_proc.ops import reference as operations

_MARKED = re.compile(r"(<!-- (?P<name>[a-z]+): generated -->\n).*?(<!-- end -->)", re.DOTALL)


def commands() -> str:
    """Return the table of commands."""
    (choices,) = (action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001  argparse shows its sub-commands nowhere else
    rows = [f"| `kvpicker {action.dest}` | {action.help} |" for action in choices._choices_actions]  # noqa: SLF001  as above
    return _table("command", "what it does", rows)


def strategies() -> str:
    """Return the table of kvpicker's own strategies, by the first line of their modules."""
    rows = [f"| `{entry.name}` | {_first_line(entry.load())} |" for entry in _own_strategies()]
    return _table("strategy", "chooses", rows)


def parameters() -> str:
    """Return the table of the parameters of kvpicker's own strategies."""
    made = [(entry.name, getattr(entry.load(), "Parameters", None)) for entry in _own_strategies()]
    rows = [row for name, struct in made if struct is not None for row in config.rows(struct, f"{name}: ")]
    return "\n".join([*config.HEADER, *rows])


def tables() -> dict[str, str]:
    """Return every generated table by the name its markers use."""
    return {
        "commands": commands(),
        "strategies": strategies(),
        "parameters": parameters(),
        "configuration": config.reference(),
        "analysis": analysis.reference(),
        "conformance": conformance.reference(),
        "operations": operations.reference(),
        "misfits": operations.misfits(),
        **endpoint_picker.tables(),
        "profiles": envoys.profiles(),
        "envoys": envoys.versions(),
    }


def filled(text: str) -> str:
    """Return a document with each marked part replaced by its table."""
    made = tables()
    return _MARKED.sub(lambda mark: f"{mark[1]}\n{made[mark['name']].strip()}\n\n{mark[3]}", text)


def documents(root: Path) -> list[Path]:
    """Return the documents that hold generated tables."""
    pages = ("conformance.md", "endpoint-picker.md", "reference.md", "strategies.md")
    return [root / "README.md", root / "envoy" / "README.md", *(root / "deploy" / page for page in pages)]


def _own_strategies() -> list[EntryPoint]:
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return [entry for entry in entries if entry.module.startswith("ext_proc.")]


def _first_line(strategy: type) -> str:
    module = inspect.getmodule(strategy)
    first = inspect.getdoc(module or strategy) or ""
    text = first.partition("\n")[0].partition(": ")[2].rstrip(".;")
    return text[:1].upper() + text[1:]


def _table(left: str, right: str, rows: list[str]) -> str:
    return "\n".join([f"| {left} | {right} |", "|---|---|", *rows])


if __name__ == "__main__":
    for document in documents(Path.cwd()):
        document.write_text(filled(document.read_text("utf-8")), "utf-8")
