"""Server-sent events on the wire, also in the odd ways in which some engines write them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ext_proc.sim.shapes import Event

_ENCODE = msgspec.json.Encoder().encode


def encode_event(event: Event, styles: frozenset[str] = frozenset()) -> bytes:
    """One event; `styles` are some of `faults.SSE_STYLES`."""
    data = event.data if isinstance(event.data, bytes) else _ENCODE(event.data)
    if not styles:
        head = b"event: " + event.name.encode() + b"\n" if event.name else b""
        return head + b"data: " + data + b"\n\n"
    end = b"\r\n" if "crlf" in styles else b"\n"
    colon = b":" if "no_space" in styles else b": "
    head = b"event" + colon + event.name.encode() + end if event.name else b""
    comment = b": keepalive" + end + end if "comments" in styles else b""
    return comment + head + b"data" + colon + data + end + end


def encode_events(events: Iterable[Event]) -> bytes:
    """Events one after the other."""
    return b"".join([encode_event(event) for event in events])


def without_final_newline(event: bytes) -> bytes:
    """The last event of a stream whose writer forgot the blank line at the end."""
    return event.rstrip(b"\r\n")
