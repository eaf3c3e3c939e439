"""Puts another model into a JSON body; every other byte stays as it is."""

from __future__ import annotations

import msgspec

from ext_proc.core.prompts.jsonbody import BOM
from ext_proc.core.prompts.repair import skip_blanks, top_level_span

_MODEL = b"model"


def with_model(body: bytes, model: str, *, may_lack: bool = True) -> bytes | None:
    """Return a body that names another model, or the model that it lacks.

    Args:
        body: its bytes.
        model: the name.
        may_lack: False for a body that is not given a model where none is found, since one may stand behind what came
            of it, or it may mean something else than requests of a known kind do.

    None if that cannot be done: the body is no JSON object in UTF-8, or its model is no text, or not found.
    """
    inside = skip_blanks(body.removeprefix(BOM))
    if inside[:1] != b"{" or inside[1:2] == b"\0":  # UTF-16 and UTF-32 begin so as well
        return None
    name = msgspec.json.encode(model)
    span = top_level_span(body, _MODEL)
    if span is None:
        if not may_lack:
            return None
        rest = inside[1:]
        comma = b"" if skip_blanks(rest)[:1] == b"}" else b","
        return b"".join((body[: len(body) - len(rest)], b'"model":', name, comma, rest))
    if span.start == span.stop:
        return None
    return b"".join((body[: span.start], name, body[span.stop :]))
