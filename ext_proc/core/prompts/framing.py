"""Frames the pieces of a canonical prompt with bytes that cannot occur in UTF-8 text."""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgspec
import xxhash

SETTING = b"\xc0"
PREVIOUS = b"\xc1"
TOOL = b"\xf5"
TOKENS = b"\xf6"
OTHER = b"\xf7"
MEDIA = b"\xf8"
NAME = b"\xf9"
ID = b"\xfa"
ARGUMENTS = b"\xfb"
CALL = b"\xfc"
REASONING = b"\xfd"
TEXT = b"\xfe"
MESSAGE = b"\xff"

BYTES_PER_TOKEN = 4

_ordered = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")

_ID_LIMIT = 2**32


def utf8(text: str) -> bytes:
    """Encode any string, lone surrogates too; the result never holds a framing byte."""
    return text.encode("utf-8", "surrogatepass")


def stable_json(value: Any) -> bytes:
    """Encode a value so that key order, whitespace and escapes of the original do not matter."""
    return _to_json(value, sort_keys=True)


def ordered_json(value: Any) -> bytes:
    """Encode a value with its key order kept, because templates print it in that order."""
    return _to_json(value, sort_keys=False)


def word(value: Any) -> bytes:
    """Encode what should be a string: a role, a name, an id; absent and null give nothing."""
    if type(value) is str:
        return utf8(value)
    return b"" if value is None else OTHER + stable_json(value)


def digest(material: bytes) -> bytes:
    """Name bulky content by 32 hexadecimal digits (xxh3_128), so that different contents differ early."""
    return xxhash.xxh3_128_hexdigest(material).encode("ascii")


def pack_ids(ids: list[Any]) -> bytes:
    """Pack token ids as 4-byte little-endian numbers; what is no such number counts as 0, and no engine takes it."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError):
        packed = array("I", [value if type(value) is int and 0 <= value < _ID_LIMIT else 0 for value in ids])
    if packed.itemsize != BYTES_PER_TOKEN or array("H", [1]).tobytes() != b"\x01\x00":
        return b"".join(number.to_bytes(BYTES_PER_TOKEN, "little") for number in packed)
    return packed.tobytes()


def estimate_tokens(size: int) -> int:
    """Estimate the tokens of `size` bytes of text, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def _to_json(value: Any, *, sort_keys: bool) -> bytes:
    try:
        return (_sorted if sort_keys else _ordered).encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, sort_keys=sort_keys, separators=(",", ":"))
        return utf8(text)
