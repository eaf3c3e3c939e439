"""Renders tool definitions of every API into one canonical form."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from ext_proc.core.prompts.framing import ARGUMENTS, OTHER, TEXT, TOOL, ordered_json, stable_json, word
from ext_proc.core.prompts.jsonbody import loads

_CACHED_BYTES = 128 * 1024
"""Agents send the same definitions with each turn; larger ones are not kept, which bounds the cache to 16 MiB."""

_RENDERED = frozenset({"type", "name", "description", "parameters", "input_schema", "function", "cache_control"})
_PLAIN_TYPES = frozenset({"function", "custom"})


def canonical_tools(raw: msgspec.Raw) -> bytes:
    """Render the `tools` (or `functions`) member of a body.

    The order of the keys around a definition does not matter; the order inside its schema does,
    because templates print it.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    definitions = bytes(raw)
    if not definitions:
        return b""
    return _cached(definitions) if len(definitions) <= _CACHED_BYTES else _render(definitions)


def _render(definitions: bytes) -> bytes:
    tools = loads(definitions) if definitions else None
    return b"".join(map(_tool, tools)) if isinstance(tools, list) else b""


def _tool(tool: Any) -> bytes:
    if not isinstance(tool, dict):
        return TOOL + OTHER + stable_json(tool)
    function = tool.get("function")
    inner: dict[str, Any] = function if isinstance(function, dict) else tool
    pieces = [TOOL, word(inner.get("name"))]
    description = inner.get("description")
    if description:
        pieces += [TEXT, word(description)]
    schema = inner.get("parameters", inner.get("input_schema"))
    if schema is not None:
        pieces += [ARGUMENTS, ordered_json(schema)]
    rest = {key: value for key, value in (tool | inner).items() if key not in _RENDERED and value is not None}
    kind = tool.get("type")
    if kind is not None and not (isinstance(kind, str) and kind in _PLAIN_TYPES):
        rest["type"] = kind
    if rest:
        pieces += [OTHER, stable_json(rest)]
    return b"".join(pieces)


_cached = functools.lru_cache(maxsize=64)(_render)
