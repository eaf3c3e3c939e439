"""The JSON schema and the reference table of the settings, both generated from the settings themselves."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import msgspec

from ext_proc.config.section import Section
from ext_proc.config.settings import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = ("| field | default | meaning |", "|---|---|---|")


def schema() -> dict[str, Any]:
    """Describe the configuration file as JSON schema, each field with its meaning."""
    result = msgspec.json.schema(Config)
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    by_name = {section.__name__: section for section in Section.__subclasses__()}
    for name, definition in result["$defs"].items():
        section = by_name[name]
        definition["description"] = inspect.getdoc(section).partition("\n")[0]  # type: ignore[union-attr]
        for field, meaning in attributes(section).items():
            definition["properties"][field]["description"] = meaning
    return result


def reference() -> str:
    """Render the settings as a markdown table, one line per field."""
    return "\n".join([*HEADER, *rows(Config, "")]) + "\n"


def attributes(section: type) -> dict[str, str]:
    """Read the `Attributes:` part of a Google-style docstring: field → meaning."""
    _, _, listed = (inspect.getdoc(section) or "").partition("Attributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def rows(section: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """Render the lines of a section, each field's name behind `prefix`; nested sections follow their field."""
    meanings = attributes(section)
    for field in msgspec.structs.fields(section):
        path = f"{prefix}{field.name}"
        nested = list(_sections(field.type))
        default = "" if nested else _default(field)
        meaning = meanings[field.name].replace("|", chr(92) + "|")
        yield f"| `{path}` | {default} | {meaning[:1].upper()}{meaning[1:]} |"
        for inner in nested:
            yield from rows(inner, _inner_prefix(path, field.type))


def _sections(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _inner_prefix(path: str, annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _inner_prefix(path, get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return f"{path}.NAME."
    return f"{path}[]." if get_origin(annotation) is tuple else f"{path}."


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{msgspec.json.encode(default).decode()}`" if default not in (None, (), {}) else "unset"
