"""Renders the part of Go's templates that the chart uses; anything else is an error. Helm itself is not asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-?) (.*?) (-?)\}\}", re.DOTALL)


def render(template: str, data: dict[str, Any]) -> str:
    """Render a template.

    Raises:
        ValueError: the template has something that is not known here, or a block that does not end.
    """
    out: list[str] = []
    shown = [True]  # of each open block, whether its text counts
    for text, action in _parts(template):
        if all(shown):
            out.append(text)
        word, _, rest = action.partition(" ")
        if word == "if":
            shown.append(bool(_condition(rest, data)))
        elif action == "else" and len(shown) > 1:
            shown[-1] = not shown[-1]
        elif action == "end" and len(shown) > 1:
            shown.pop()
        elif action and all(shown):
            out.append(_pipeline(action, data))
    if len(shown) != 1:
        raise ValueError("a block does not end")
    return "".join(out)


def _parts(template: str) -> Iterator[tuple[str, str]]:
    """Yield each text with the action behind it, white space trimmed where the action says so."""
    position, trimmed = 0, False
    for match in _ACTION.finditer(template):
        text = template[position : match.start()]
        text = text.rstrip() if match[1] else text
        yield (text.lstrip() if trimmed else text), match[2]
        position, trimmed = match.end(), bool(match[3])
    rest = template[position:]
    if "{{" in rest or "}}" in rest:
        raise ValueError("an action does not end, or has no blanks around it")
    yield (rest.lstrip() if trimmed else rest), ""


def _condition(text: str, data: dict[str, Any]) -> Any:
    match = re.fullmatch(r'eq (\S+) "([^"]*)"', text)
    return _value(match[1], data) == match[2] if match else _value(text, data)


def _pipeline(text: str, data: dict[str, Any]) -> str:
    first, *functions = text.split(" | ")
    value = _value(first, data)
    for function in functions:
        name, _, argument = function.partition(" ")
        if name == "quote":
            value = json.dumps(value, ensure_ascii=False)
        elif name == "toJson":
            value = json.dumps(value)
        elif name == "toYaml":
            value = yaml.safe_dump(value).rstrip("\n")
        elif name == "nindent":
            value = "\n" + "\n".join(" " * int(argument) + line for line in str(value).split("\n"))
        else:
            raise ValueError(f"no function {name!r} here")
    if isinstance(value, dict | list | bool) or value is None:
        raise ValueError(f"{text}: {value!r} is no text")
    return str(value)


def _value(path: str, data: dict[str, Any]) -> Any:
    if not re.fullmatch(r"(\.\w+)+", path):
        raise ValueError(f"no value {path!r} here")
    found: Any = data
    for name in path.split(".")[1:]:
        if name not in found:
            raise ValueError(f"{path}: there is no {name}")
        found = found[name]
    return found
