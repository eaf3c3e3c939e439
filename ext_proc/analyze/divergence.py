"""Finds where two near-equal prompts part, why, and how many equal tokens lie behind that and cannot be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from ext_proc.analyze.kinds import Kind, kind_of
from ext_proc.analyze.segments import Segment, label, readable
from ext_proc.core.hashing import BYTES_PER_TOKEN

LEAST_LOST = 64
"""Tokens; less equal text behind the place where prompts part is chance."""

_LEAST_LINE = 8
_CHUNK = 4096


class Prompt(msgspec.Struct, frozen=True):
    """A prompt that is compared with others.

    Attributes:
        namespace: what separates caches beside the model.
        pieces: its segments, perhaps only the first ones.
    """

    namespace: tuple[str, ...]
    pieces: Sequence[Segment]


class Break(msgspec.Struct, frozen=True):
    """Where and why two prompts that have much in common part.

    Attributes:
        kind: what differs.
        where: the part of the request.
        characters: how far into that part they are equal.
        tokens: how far into the prompt they are equal.
        lost: tokens behind that place which are equal again.
        old: text around the place in one prompt.
        new: the same in the other.
    """

    kind: Kind
    where: str
    characters: int
    tokens: int
    lost: int
    old: str = ""
    new: str = ""


def compare(old: Prompt, new: Prompt) -> Break | None:
    """Compare a prompt with an earlier one; None if they part where conversations part."""
    found = _compare_pieces(old, new)
    return found if found is not None and found.lost >= LEAST_LOST else None


def shared_beginning(left: bytes | str, right: bytes | str) -> int:
    """Return how many bytes or characters two texts share at the beginning."""
    end = min(len(left), len(right))
    start = 0
    while start < end and left[start : start + _CHUNK] == right[start : start + _CHUNK]:
        start += _CHUNK
    low, high = min(start, end), min(start + _CHUNK, end)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _compare_pieces(old: Prompt, new: Prompt) -> Break | None:
    ours, theirs = new.pieces, old.pieces
    pairs = zip(theirs, ours, strict=False)
    place = next((number for number, (left, right) in enumerate(pairs) if left.digest != right.digest), None)
    before = sum(len(piece.data) for piece in ours[:place])
    if old.namespace != new.namespace:
        return Break(Kind.SALT, "request", 0, 0, before // BYTES_PER_TOKEN)
    if place is None:
        # One is the beginning of the other, or they are equal: nothing keeps them from sharing.
        return None
    if "tool" in {theirs[place].kind, ours[place].kind}:
        return _compare_tools(theirs, ours, place, before)
    moved = _moved(theirs, ours, place)
    if moved is not None:
        kind, run = moved
        return Break(kind, label(ours, place), 0, before // BYTES_PER_TOKEN, run // BYTES_PER_TOKEN)
    return _compare_texts(theirs, ours, place, before)


def _compare_tools(theirs: Sequence[Segment], ours: Sequence[Segment], place: int, before: int) -> Break | None:
    left = [piece for piece in theirs if piece.kind == "tool"]
    right = [piece for piece in ours if piece.kind == "tool"]
    known = {piece.digest for piece in left}
    equal_tools = sum(len(piece.data) for piece in right[place:] if piece.digest in known)
    lost = (equal_tools + _equal_messages(theirs, ours)) // BYTES_PER_TOKEN
    tokens = before // BYTES_PER_TOKEN
    if Counter(piece.digest for piece in left) == Counter(piece.digest for piece in right):
        return Break(Kind.TOOL_ORDER, "tools", 0, tokens, lost)
    if [piece.name for piece in left] == [piece.name for piece in right]:
        return _compare_texts(theirs, ours, place, before)
    names = Counter(piece.name for piece in left) == Counter(piece.name for piece in right)
    return Break(Kind.TOOL_ORDER if names else Kind.TOOL_SET, "tools", 0, tokens, lost)


def _equal_messages(theirs: Sequence[Segment], ours: Sequence[Segment]) -> int:
    """Return the bytes of the messages that both have from the first one on."""
    left = [piece for piece in theirs if piece.kind == "message"]
    right = [piece for piece in ours if piece.kind == "message"]
    return _run(left, right)


def _moved(theirs: Sequence[Segment], ours: Sequence[Segment], place: int) -> tuple[Kind, int] | None:
    """Tell whether the rest of one prompt stands in the other a few messages further on."""
    for longer, shorter, kind in ((theirs, ours, Kind.TRIMMED), (ours, theirs, Kind.INSERTED)):
        wanted = shorter[place].digest
        for further in range(place + 1, len(longer)):
            if longer[further].digest == wanted:
                run = _run(longer[further:], shorter[place:])
                if run >= LEAST_LOST * BYTES_PER_TOKEN:
                    return kind, run
    return None


def _run(left: Sequence[Segment], right: Sequence[Segment]) -> int:
    """Return the bytes that both have from the first segment on."""
    equal = 0
    for one, other in zip(left, right, strict=False):
        if one.digest != other.digest:
            break
        equal += len(one.data)
    return equal


def _compare_texts(theirs: Sequence[Segment], ours: Sequence[Segment], place: int, before: int) -> Break | None:
    one, other = theirs[place], ours[place]
    if one.name != other.name:
        return None
    left, right = readable(one.data), readable(other.data)
    shared = shared_beginning(left, right)
    behind = sum(
        len(right_piece.data)
        for left_piece, right_piece in zip(theirs[place + 1 :], ours[place + 1 :], strict=False)
        if left_piece.digest == right_piece.digest
    )
    kind = kind_of(left, right, shared)
    if kind is None and one.kind != "tool":
        kind = Kind.SYSTEM if one.is_system else Kind.MESSAGE
    # The frame and the role in front of the text are no characters of it.
    frame = len(one.name) + 2 if one.kind == "message" else 0
    return Break(
        kind=kind or Kind.TOOL_SET,
        where=label(ours, place),
        characters=max(shared - frame, 0),
        tokens=(before + len(right[:shared].encode("utf-8", "replace"))) // BYTES_PER_TOKEN,
        lost=(behind + _equal_rest(left[shared:], right[shared:])) // BYTES_PER_TOKEN,
        old=left[max(shared - 30, frame) : shared + 30],
        new=right[max(shared - 30, frame) : shared + 30],
    )


def _equal_rest(left: str, right: str) -> int:
    """Return the characters of a text that stand in the other too: its equal end, or all its equal lines."""
    end = shared_beginning(left[::-1], right[::-1])
    lines = Counter(line for line in left.split("\n") if len(line) >= _LEAST_LINE)
    lines &= Counter(line for line in right.split("\n") if len(line) >= _LEAST_LINE)
    return max(end, sum(len(line) * count for line, count in lines.items()))
