"""Plain data → settings, collecting every mistake with its path, its line and advice."""

from __future__ import annotations

import difflib
import re
import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from ext_proc.config.document import Document, Path, dotted, shown
from ext_proc.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SectionT = TypeVar("SectionT", bound=msgspec.Struct)


class Problem(NamedTuple):
    """One mistake: the field at fault and what to do about it."""

    path: Path
    message: str


def convert(document: Document, section: type[SectionT]) -> SectionT:
    """Make a settings object of a document.

    Raises ConfigError that lists every mistake, the first one in `path` and `where`.
    """
    try:
        return msgspec.convert(document.data, section)
    except msgspec.ValidationError as error:
        found = list(problems(document.data, section, ()))
        refuse(document, found or [Problem((), str(error))])
        raise


def refuse(document: Document, found: Iterable[Problem]) -> None:
    """Raise ConfigError if there are problems: one line each, in the order of the file."""
    ordered = sorted(found, key=lambda problem: document.line(problem.path))
    if not ordered:
        return
    (path, message), *more = ordered
    rest = [str(ConfigError(m, path=dotted(p), where=document.where(p))) for p, m in more]
    raise ConfigError("\n".join([message, *rest]), path=dotted(path), where=document.where(path))


def problems(value: Any, annotation: Any, path: Path) -> Iterator[Problem]:
    """Compare a value with its annotation, field by field."""
    origin = get_origin(annotation)
    if origin in {Union, types.UnionType}:
        annotation = _member(value, annotation)
        origin = get_origin(annotation)
    if origin is Annotated and get_origin(get_args(annotation)[0]) in {dict, tuple}:
        inside = list(problems(value, get_args(annotation)[0], path))
        of_whole = (each for each in _scalar_problems(value, annotation, path) if " - at `$" not in each.message)
        yield from inside or of_whole
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield from _section_problems(value, annotation, path)
    elif origin is dict and isinstance(value, dict):
        key_type, value_type = get_args(annotation)
        for key, item in value.items():
            yield from _scalar_problems(key, key_type, (*path, key))
            yield from problems(item, value_type, (*path, key))
    elif origin is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(item, get_args(annotation)[0], (*path, index))
    else:
        yield from _scalar_problems(value, annotation, path)


def _member(value: Any, union: Any) -> Any:
    """The member of a union that a value is meant to be: the mapping, nothing, or the rest."""
    members = get_args(union)
    structs = [m for m in members if isinstance(m, type) and issubclass(m, msgspec.Struct)]
    if isinstance(value, dict) and structs:
        return structs[0]
    if value is None and type(None) in members:
        return type(None)
    return next(m for m in members if m not in structs and m is not type(None))


def _section_problems(value: Any, section: type[msgspec.Struct], path: Path) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"expected a mapping, got {shown(value)}; write its fields or remove the key")
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(section)}
    for key in value:
        if key not in fields:
            yield Problem((*path, key), f"unknown field{_suggestion(key, fields)}")
    for name, field in fields.items():
        if name in value:
            yield from problems(value[name], field.type, (*path, name))
        elif field.required:
            yield Problem(path, f"the field `{name}` is missing")


def _scalar_problems(value: Any, annotation: Any, path: Path) -> Iterator[Problem]:
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if value not in choices:
            listed = " or ".join(f"`{choice}`" for choice in choices)
            hint = " in quotes" if isinstance(value, bool) else ""
            yield Problem(path, f"expected {listed}{hint}, got {shown(value)}")
        return
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        yield Problem(path, _explain(str(error), value))


WORDS: Mapping[str, str] = types.MappingProxyType(
    {
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "array": "a list",
        "object": "a mapping",
        "bool": "true or false",
        "null": "nothing",
    }
)
SIGNS: Mapping[str, str] = types.MappingProxyType({">=": "at least", "<=": "at most", ">": "above", "<": "below"})


def _explain(message: str, value: Any) -> str:
    if match := re.match(r"Expected `(?:int|float)` (>=|<=|>|<) ([\d.]+)", message):
        return f"must be {SIGNS[match[1]]} {match[2]}, got {shown(value)}"
    if value in ("", []):
        return "must not be empty; fill it in, or leave it out"
    if match := re.match(r"Expected `str` of length (>=|<=) (\d+)", message):
        return f"must have {SIGNS[match[1]]} {match[2]} characters, got {shown(value)}"
    if match := re.match(r"Expected `str` matching regex '(.*)'", message):
        letters = "letters" if "A-Z" in match[1] else "lower-case letters"
        return f"{shown(value)} is not a name; use {letters}, digits and hyphens"
    if match := re.match(r"Expected `(\w+)", message):
        return f"expected {WORDS.get(match[1], match[1])}, got {shown(value)}{_advice(match[1], value)}"
    return message


def _advice(expected: str, value: Any) -> str:
    if expected == "str" and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if expected in {"int", "float"} and isinstance(value, str):
        return "; write a plain number, the unit is in the name of the field"
    if expected == "array" and isinstance(value, str):
        return f"; write [{value}]"
    return ""


def _suggestion(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f", did you mean `{close[0]}`?" if close else f"; known are {', '.join(sorted(known))}"
