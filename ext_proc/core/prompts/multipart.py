"""Reads one short field of a multipart/form-data body without decoding the rest."""

from __future__ import annotations

import re

_MAX_PARTS = 256
_MAX_HEAD = 4096
_MAX_VALUE = 1024
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))""", re.IGNORECASE)

_NAMED = rb"""^content-disposition:(?:[^\r\n"]|"(?:[^\r\n"\\]|\\.)*")*?[;\s]name=(?:"%b"|%b(?=[;\s]|$))"""
"""A name within the quotes of another parameter, such as a file's name, is none."""


def form_field(content_type: str, body: bytes, name: str) -> str | None:
    """Find the value of the form field `name`; the last one wins, None if none stands whole in view."""
    declared = _BOUNDARY.search(content_type)
    if not declared or not content_type.lower().lstrip().startswith("multipart/form-data"):
        return None
    delimiter = b"--" + (declared[1] or declared[2]).encode("utf-8", "replace")
    wanted = re.compile(_NAMED % ((re.escape(name.encode()),) * 2), re.IGNORECASE | re.MULTILINE)
    found = None
    position = body.find(delimiter)
    for _ in range(_MAX_PARTS):
        if position < 0:
            break
        start = position + len(delimiter)
        position = body.find(b"\n" + delimiter, start)
        head, blank, _ = body[start : start + _MAX_HEAD].partition(b"\r\n\r\n")
        size = position - start - len(head) - len(blank)
        if position >= 0 and blank and size <= _MAX_VALUE and wanted.search(head):
            begin = start + len(head) + len(blank)
            found = body[begin:position].removesuffix(b"\r").decode("utf-8", "replace").strip()
        position += position >= 0
    return found or None
