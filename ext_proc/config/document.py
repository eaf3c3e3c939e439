"""YAML text → plain data with the line of every field; accepts no tags, no aliases and no duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec
import yaml

from ext_proc.core.errors import ConfigError

Path: TypeAlias = tuple[str | int, ...]

MAX_DEPTH = 32
MAX_SHOWN = 60

PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq"))

KEY_TAGS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})

# Of bounded length within one line: a search over line ends takes minutes in a long file.
_BARE_IPV6 = re.compile(r"^[^'\"#\n]*?\[[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{0,40}\]:\d", re.MULTILINE)

# The C parser is ten times faster, and builds of PyYAML without it exist.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document(msgspec.Struct, frozen=True):
    """What a YAML file holds.

    Attributes:
        data: dicts, lists and scalars; None for an empty file.
        lines: the line (from 1) where each field begins.
        source: name of the file in messages.
    """

    data: Any
    lines: Mapping[Path, int]
    source: str

    def line(self, path: Path) -> int:
        """Find the line of a field, or of the nearest field around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def find(self, field: str) -> Path:
        """Find a field, or the nearest field around it, by its path as `dotted` writes it; () if there is none."""
        around = [
            path for path in self.lines if field == (name := dotted(path)) or field.startswith((f"{name}.", f"{name}["))
        ]
        return max(around, key=len, default=())

    def where(self, path: Path) -> str:
        """Name the file and line of a field."""
        return f"{self.source}:{self.line(path)}"


def dotted(path: Path) -> str:
    """Write a path as operators read it: `pools.chat.endpoints[1].address`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """Quote a value for a message; long ones are cut."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return f"`{text[:MAX_SHOWN]}…`" if len(text) > MAX_SHOWN else f"`{text}`"


def read(text: str, source: str) -> Document:
    """Read one YAML document.

    Raises ConfigError, with file and line, for broken YAML and for what plain YAML does not need.
    """
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, source)
        data = None if node is None else reader.value(node, ())
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, source) from None
    finally:
        loader.dispose()
    return Document(data, reader.lines, source)


class _Reader:
    """Walks the node tree itself, because PyYAML's constructor forgets lines and accepts duplicate keys."""

    def __init__(self, loader: Any, source: str) -> None:
        self.lines: dict[Path, int] = {}
        self._loader = loader
        self._source = source
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, _line(node))
        if id(node) in self._seen:
            self._fail(node, path, "aliases (`*name`) are not accepted; write the value out")
        self._seen.add(id(node))
        if node.tag not in PLAIN_TAGS:
            self._foreign(node, path)
        if len(path) > MAX_DEPTH:
            self._fail(node, path[:3], f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key in result:
                lines = f"lines {first_lines[key]} and {_line(key_node)}"
                self._fail(key_node, (*path, key), f"the key stands twice, on {lines}; remove one")
            first_lines[key] = self.lines[(*path, key)] = _line(key_node)
            result[key] = self.value(value_node, (*path, key))
        return result

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, path, "a key must be text, not a mapping or list")
        if node.tag not in KEY_TAGS:
            self._fail(node, path, f"the key {shown(node.value)} is not text; put it in quotes")
        return str(node.value)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError:
            self._fail(node, path, f"{shown(node.value)} cannot be read; put text in quotes")

    def _foreign(self, node: yaml.Node, path: Path) -> NoReturn:
        if node.tag == "tag:yaml.org,2002:timestamp":
            self._fail(node, path, f"{shown(node.value)} reads as a date; put it in quotes")
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        self._fail(node, path, f"the tag {tag} is not accepted; plain YAML only")

    def _fail(self, node: yaml.Node, path: Path, message: str) -> NoReturn:
        raise ConfigError(message, path=dotted(path), where=f"{self._source}:{_line(node)}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax_error(error: yaml.YAMLError, text: str, source: str) -> ConfigError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem, line = error.problem or "unreadable", error.problem_mark.line + 1
    elif isinstance(error, yaml.reader.ReaderError):
        problem, line = error.reason, text.count("\n", 0, error.position) + 1
    else:
        problem, line = str(error), 1
    if _BARE_IPV6.search(text):
        problem += '; an IPv6 address must be in quotes, as in "[fd00::10]:8000"'
    return ConfigError(f"not valid YAML: {problem}", where=f"{source}:{line}")
