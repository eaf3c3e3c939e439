"""Decodes JSON bodies: quickly where they are strict, leniently where an engine might still accept them."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

import msgspec
import xxhash

from ext_proc.core.prompts.repair import skip_blanks

T = TypeVar("T", bound=msgspec.Struct)

BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
_MAX_VALUES = 100_000
_LONGEST_NAME = 256
_SHOWN = 64
_INT_DIGITS = 400
"""Python refuses to read integers of more than 4,300 digits; nothing that kvpicker reads needs so many."""


def normalise(body: bytes) -> bytes:
    """Strip a byte order mark and leading blanks, and turn UTF-16 and UTF-32 into UTF-8."""
    if body.startswith(BOM):
        body = body[len(BOM) :]
    elif b"\0" in body[:4] or body.startswith((b"\xfe\xff", b"\xff\xfe")):
        body = body.decode(json.detect_encoding(body), "replace").encode("utf-8", "replace")
    return skip_blanks(body)


def loads(raw: bytes | msgspec.Raw) -> Any:
    """Decode any JSON value.

    Lone surrogates, invalid UTF-8, NaN, Infinity and numbers beyond any range are accepted.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return _lenient(bytes(raw))


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a JSON object into the decoder's struct; the last of duplicate keys wins.

    Raises:
        ValueError: it is not a JSON object.
        RecursionError: it is nested too deeply.
    """
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        check_size(body)
        value = _lenient(body)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # one error for all that is not usable
    kind = cast("type[T]", decoder.type)
    fields = msgspec.structs.fields(kind)
    return kind(**{f.name: _field(f, value[f.name]) for f in fields if f.name in value})


def clean(text: str) -> str:
    """Spell out lone surrogates, which neither logs nor protobuf can carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def short(text: str) -> str:
    """Keep a name as it is, or a digest in place of a long one: what waits for an outcome must be small."""
    if len(text) <= _LONGEST_NAME and text.isascii():  # as nearly always
        return text
    text = clean(text)
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[:_SHOWN]}…{xxhash.xxh3_128_hexdigest(text.encode())}"


def check_size(body: bytes) -> None:
    """Refuse a body with so many values that decoding it would stop all other requests.

    Raises:
        RecursionError: it has more than some hundred thousand of them.
    """
    texts = (body.count(b'"') - body.count(b'\\"')) // 2
    if body.count(b"[") + body.count(b"{") + texts > _MAX_VALUES:
        raise RecursionError("too many values")


def _lenient(body: bytes) -> Any:
    if body.rstrip(_BLANKS)[-1:] not in (b"}", b"]", b'"') and body[:1] in (b"{", b"[", b'"'):
        raise ValueError("not closed")
    text = body.decode("utf-8", "surrogateescape")
    return json.loads(text, strict=False, parse_int=_parse_int)


def _field(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    return msgspec.Raw(json.dumps(value).encode()) if field.type is msgspec.Raw else value


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float(digits)
