"""Makes messages alike whose headers differ in nothing that is read, so that what one was understood as serves all."""

from __future__ import annotations

from typing import Final

from ext_proc.core.names import REQUEST_ID
from ext_proc.core.wishes import HeaderNames

_UUID: Final = 36
_NO_UUID: Final = b"0" * _UUID
_SHORT: Final = 0x80


def _field(name: str) -> bytes:
    """Return what stands before the length of a header's value, as Envoy writes it."""
    return b"\x0a" + bytes((len(name),)) + name.encode() + b"\x1a"


_REQUEST_ID: Final = _field(REQUEST_ID) + bytes((_UUID,))
_UNREAD: Final = tuple((name, _field(name)) for name in ("content-length", "traceparent"))
"""Headers that differ from request to request, and of which nothing is read unless the configuration says so."""


def alike(message: bytes, names: HeaderNames) -> tuple[bytes, str]:
    """Return a message without what makes it differ from others of its client, and the request id taken out of it.

    Args:
        message: a ProcessingRequest with the headers of a request.
        names: which headers are read beside the usual ones.

    Returns:
        A message of the same layout, and the id; empty if it stays in the message, since it is read as something else
        too, or there is none.
    """
    for name, field in _UNREAD:
        at = message.find(field)
        if at >= 0 and name not in names.every:
            start = at + len(field) + 1
            size = message[start - 1] if start <= len(message) else _SHORT
            if size < _SHORT and start + size <= len(message):
                message = message[:start] + b"0" * size + message[start + size :]
    before, found, rest = message.partition(_REQUEST_ID)
    if not found or len(rest) < _UUID or REQUEST_ID in names.every:
        return message, ""
    return before + found + _NO_UUID + rest[_UUID:], rest[:_UUID].decode("utf-8", "replace")
