"""Says what kind of text differs where two texts part."""

from __future__ import annotations

import enum
import json
import re

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DATES = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?"
    rf"|{_MONTH}\s{{1,2}}{_DAY}(?:,?\s\d{{4}})?|{_DAY}\s{_MONTH}(?:\s\d{{4}})?|{_MONTH}\s\d{{4}}"
    r"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
    r"|\b1[4-9]\d{8}(?:\.\d+|\d{3})?\b"
)
_IDENTIFIERS = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?=[A-Za-z_-]{0,40}\d)(?=[\d_-]{0,40}[A-Za-z])[A-Za-z0-9_-]{12,200}"
)
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_CONTEXT = 64
_OPENING = re.compile(r"[{\[]")
_MOST_OPENINGS = 16
_LONGEST_JSON = 65_536


class Kind(enum.StrEnum):
    """What breaks prefixes."""

    DATE = "date or time"
    IDENTIFIER = "identifier or nonce"
    NUMBER = "number"
    TOOL_ORDER = "order of tools"
    TOOL_SET = "changing set of tools"
    KEY_ORDER = "order of JSON keys"
    WHITESPACE = "whitespace"
    SYSTEM = "changing system prompt"
    MESSAGE = "changing text before constant text"
    TRIMMED = "history trimmed at the front"
    INSERTED = "message inserted in front"
    SALT = "different cache_salt or adapter"


def kind_of(old: str, new: str, place: int) -> Kind | None:
    """Name what differs at a place where two texts part; None if it is just other text.

    Args:
        old: one text.
        new: the other.
        place: how many characters they share at the beginning.
    """
    if _same_but_spaces(old, new, place):
        return Kind.WHITESPACE
    if _same_json(old, new, place):
        return Kind.KEY_ORDER
    for pattern, kind in ((_DATES, Kind.DATE), (_IDENTIFIERS, Kind.IDENTIFIER), (_NUMBERS, Kind.NUMBER)):
        if _covers(pattern, old, place) and _covers(pattern, new, place):
            return kind
    return None


def _covers(pattern: re.Pattern[str], text: str, place: int) -> bool:
    """Tell whether a match of the pattern lies at that place, or ends there."""
    start = max(place - _CONTEXT, 0)
    near = text[start : place + _CONTEXT]
    at = place - start
    return any(found.start() <= at <= found.end() for found in pattern.finditer(near))


def _same_but_spaces(old: str, new: str, place: int) -> bool:
    """Tell whether the texts differ by blanks; what comes next must agree without them."""
    if not any(text[place : place + 1].isspace() for text in (old, new)):
        return False
    left, right = ("".join(text[place : place + 4 * _CONTEXT].split()) for text in (old, new))
    compared = min(len(left), len(right), _CONTEXT)
    end = max(len(old), len(new)) - place <= 4 * _CONTEXT
    return left[:compared] == right[:compared] and (compared >= _CONTEXT // 4 or (end and len(left) == len(right)))


def _same_json(old: str, new: str, place: int) -> bool:
    """Tell whether both texts part inside JSON values that are equal but for the order of keys."""
    decoder = json.JSONDecoder()
    for found in list(_OPENING.finditer(old, max(place - _LONGEST_JSON, 0), place))[:_MOST_OPENINGS]:
        start = found.start()
        try:
            left, end = decoder.raw_decode(old[: start + _LONGEST_JSON], start)
            right, _ = decoder.raw_decode(new[: start + _LONGEST_JSON], start)
        except (ValueError, RecursionError):
            continue
        if end > place and left == right:
            return True
    return False
