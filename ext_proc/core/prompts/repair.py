"""Closes a JSON text that was cut off, and finds a member of one that is nested too deeply to be decoded."""

from __future__ import annotations

import functools
import json
import re

_BLANKS = b" \t\r\n"
_QUOTE = b'"'
_ESCAPE_SIZE = len(rb"\u0000")
_MAX_QUOTES = 200_000
_MAX_BRACKETS = 100_000
"""These bound the work to some ten milliseconds; of a busier text a smaller beginning is used."""

_LONGEST_KEY = 256

_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_CUT_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CLOSERS = bytes.maketrans(b"[{", b"]}")
_PAIRING_ROUNDS = 16


def skip_blanks(body: bytes) -> bytes:
    """Strip leading blanks."""
    found = _NOT_BLANK.search(body)
    if found is None:
        return b""
    return body[found.start() :] if found.start() else body


def repair(body: bytes, names: frozenset[bytes] = frozenset()) -> bytes:
    """Close a JSON text that was cut off at any byte.

    A cut string ends at its last whole character; a cut number, literal or key is left out, and so is a cut string
    that stands under one of `names` in the outermost object, because half a name means something else. What was
    valid JSON before the cut is valid JSON again; nothing is promised for other input.
    """
    while True:
        pieces = _split(body)
        brackets = _QUOTE.join(pieces[::2]).translate(None, _NOT_BRACKETS)
        if pieces and len(brackets) <= _MAX_BRACKETS:
            break
        body = body[: len(body) // 2]
    stack = _open_brackets(brackets)
    end, is_string = _safe_end(body, pieces, stack, names)
    return body[:end] + _QUOTE * is_string + stack[::-1].translate(_CLOSERS)


def top_level_string(body: bytes, key: bytes) -> bytes | None:
    """Find the JSON string, with its quotes, that stands under `key` in the outermost object; the last one wins.

    Nothing is decoded and no recursion is used, so depth does not matter.
    """
    found = top_level_span(body, key)
    return None if found is None or found.start == found.stop else body[found.start : found.stop]


def top_level_span(body: bytes, key: bytes) -> slice | None:
    """Find where that string stands; an empty slice if what stands under the key is no string, None without the key.

    Of a text too busy to be read whole the beginning is read, and a key behind that makes the slice empty.
    """
    pieces, spelling = _split(body), _spelling(key)
    if not pieces:
        if re.compile(rb'"%b"\s*:' % spelling.pattern).search(body, _MAX_QUOTES - 1):
            return slice(0, 0)
        pieces = _split(body[: _MAX_QUOTES - 1])
    found = None
    depth = counted = 0
    for index in range(1, len(pieces) - 1, 2):
        piece = pieces[index]
        if piece != key and (b"\\" not in piece or not spelling.fullmatch(piece)):
            continue
        gap = pieces[index + 1].strip(_BLANKS)
        if gap[:1] != b":":
            continue
        depth += _depth(_QUOTE.join(pieces[counted : index + 1 : 2]))
        counted = index + 1
        if depth == 1:
            found = index, gap
    if found is None:
        return None
    index, gap = found
    if gap != b":" or index + 3 > len(pieces) - 1:
        return slice(0, 0)
    start = len(_QUOTE.join(pieces[: index + 2]))
    return slice(start, start + len(pieces[index + 2]) + 2)


@functools.cache
def _spelling(key: bytes) -> re.Pattern[bytes]:
    """Match a key of letters however it is spelt; decoding each key that might be it would take ten times as long."""
    return re.compile(b"".join(rb"(?:%c|\\u00(?i:%02x))" % (letter, letter) for letter in key))


def _unescaped(text: bytes) -> bytes:
    r"""Read a key that may be spelt with escapes, as `mod\u0065l` is; long ones are none that is looked for."""
    if b"\\" not in text or len(text) > _LONGEST_KEY:
        return text
    try:
        return str(json.loads(_QUOTE + text + _QUOTE)).encode("utf-8", "surrogatepass")
    except ValueError:
        return text


def _split(body: bytes) -> list[bytes]:
    """Split at the quotes that delimit strings: pieces with odd numbers are the strings; none if they are too many."""
    quoted = body.split(_QUOTE, _MAX_QUOTES)
    if len(quoted) > _MAX_QUOTES:
        return []
    pieces: list[bytes] = []
    held: list[bytes] = []
    for piece in quoted:
        if piece[-1:] == b"\\" and _is_escape(piece, len(piece) - 1):
            held.append(piece)
        elif held:
            pieces.append(_QUOTE.join([*held, piece]))
            held = []
        else:
            pieces.append(piece)
    return [*pieces, _QUOTE.join(held)] if held else pieces


def _is_escape(text: bytes, backslash: int) -> bool:
    """Tell whether the backslash begins an escape and is not itself escaped."""
    head = text[: backslash + 1]
    return (len(head) - len(head.rstrip(b"\\"))) % 2 == 1


def _depth(structure: bytes) -> int:
    opened = structure.count(b"[") + structure.count(b"{")
    return opened - structure.count(b"]") - structure.count(b"}")


def _open_brackets(brackets: bytes) -> bytes:
    # Removing adjacent pairs in C does nearly all of it; real bodies are not nested much deeper.
    for _ in range(_PAIRING_ROUNDS):
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    stack = bytearray()
    for bracket in brackets:
        if bracket in b"[{":
            stack.append(bracket)
        elif stack:
            stack.pop()
    return bytes(stack)


def _safe_end(body: bytes, pieces: list[bytes], stack: bytes, names: frozenset[bytes]) -> tuple[int, bool]:
    """Find where the last whole value ends, and tell whether that is within a string."""
    last = len(pieces) - 1
    start = len(body) - len(pieces[last])
    if last % 2:
        key_start = _key_start(pieces[last - 1], start - 1, stack)
        if stack == b"{" and last > 1 and _unescaped(pieces[last - 2]) in names:
            key_start = _key_start(pieces[last - 3], start - len(pieces[last - 1]) - len(pieces[last - 2]) - 3, stack)
        if key_start is None:
            return start + _whole_characters(pieces[last]), True
        return key_start, False
    tail = pieces[last]
    structure = max(tail.rfind(mark) for mark in (b",", b"[", b"{", b"]", b"}"))
    if structure >= 0:
        return start + structure + (tail[structure : structure + 1] != b","), False
    if not last or not stack:
        return len(body), False
    key_start = _key_start(pieces[last - 2], start - 2 - len(pieces[last - 1]), stack)
    return (start if key_start is None else key_start), False


def _key_start(gap: bytes, string_start: int, stack: bytes) -> int | None:
    """Find where an object ends without the key that stands behind `gap`; None if that string is a value."""
    stripped = gap.rstrip(_BLANKS)
    if stack[-1:] != b"{" or stripped.endswith(b":"):
        return None
    return string_start - len(gap) + len(stripped) - stripped.endswith(b",")


def _whole_characters(text: bytes) -> int:
    """Measure a cut string without a cut escape, a high surrogate that waits for its pair, or a cut UTF-8 sequence."""
    end = len(text)
    escape = text.rfind(b"\\", max(0, end - _ESCAPE_SIZE + 1))
    if escape >= 0 and _CUT_ESCAPE.fullmatch(text, escape) and _is_escape(text, escape):
        end = escape
    escape = end - _ESCAPE_SIZE
    if escape >= 0 and _HIGH_SURROGATE.fullmatch(text, escape, end) and _is_escape(text, escape):
        end = escape
    return end - _cut_utf8(text[max(0, end - 3) : end])


def _cut_utf8(tail: bytes) -> int:
    for back, byte in enumerate(reversed(tail), 1):
        if byte < 0x80:  # noqa: PLR2004  # ASCII
            return 0
        if byte >= 0xC0:  # noqa: PLR2004  # the first byte of a longer character
            size = 2 + (byte >= 0xE0) + (byte >= 0xF0)  # noqa: PLR2004
            return back if back < size else 0
    return 0
