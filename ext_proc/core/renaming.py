"""Puts the model that a client asked for back into an answer that names another one, as the answer passes."""

from __future__ import annotations

import json
import re
from typing import Final

_KEY: Final = rb'"model"'
_BETWEEN: Final = (b":", b": ", b" : ")
"""What stands between a key and its value, as the JSON writers of engines have it."""


class Renaming:
    """One answer, which comes in pieces that may be cut anywhere.

    Only names are found, not what is generated: within a text of JSON a quotation mark never stands without a
    backslash. Of a piece no more is held back than might be the beginning of a name.

    Args:
        written: the model that the engine was asked for.
        asked: the model that the client asked for.
    """

    def __init__(self, written: str, asked: str) -> None:
        values = {_encoded(written, ascii_only=True), _encoded(written, ascii_only=False)}
        self._names = [_KEY + between + value for between in _BETWEEN for value in values]
        either = b"|".join(map(re.escape, values))
        blanks = b"|".join(map(re.escape, _BETWEEN))
        self._pattern = re.compile(b"(%b(?:%b))(?:%b)" % (_KEY, blanks, either))
        self._asked = _encoded(asked, ascii_only=True).replace(b"\\", rb"\\")
        self._longest = max(map(len, self._names))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece; return what may go on of it and of those before."""
        seen = self._pattern.sub(rb"\1" + self._asked, self._held + piece)
        held = self._beginning(seen)
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]

    def rest(self) -> bytes:
        """Return what was held back, at the end of the answer."""
        rest, self._held = self._held, b""
        return rest

    def _beginning(self, seen: bytes) -> int:
        """Return how many bytes at the end might be the beginning of a name."""
        at = seen.find(b'"', max(len(seen) - self._longest + 1, 0))
        while at >= 0:
            if any(name.startswith(seen[at:]) for name in self._names):
                return len(seen) - at
            at = seen.find(b'"', at + 1)
        return 0


def _encoded(text: str, *, ascii_only: bool) -> bytes:
    return json.dumps(text, ensure_ascii=ascii_only).encode()
