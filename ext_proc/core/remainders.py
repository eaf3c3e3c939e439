"""Rows of candidates without some of them, each made once and kept until those that are left out change."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ext_proc.core.candidates import Candidates
from ext_proc.core.model import Endpoint

_MOST_ROWS = 64
"""Rows kept at most: one per model served, and more only for a moment."""


class Remainders:
    """What is left of rows of candidates; whoever changes who is out calls `forget`."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Candidates, Candidates]] = {}

    def forget(self) -> None:
        """Drop what was made."""
        self._rows.clear()

    def of(self, candidates: Sequence[Endpoint], out: Callable[[], Container[int]]) -> Sequence[Endpoint]:
        """Return the candidates whose slots are not out; the very same object if none is.

        Args:
            candidates: to choose from.
            out: names the slots that are out; asked only where the answer is not known yet.
        """
        known = self._rows.get(id(candidates))
        # The row holds the candidates, so their id cannot have passed to others while it is here.
        if known is not None and known[0] is candidates:
            return known[1]
        gone = out()
        kept = [endpoint for endpoint in candidates if endpoint.slot not in gone]
        if not isinstance(candidates, Candidates):  # made for one decision, and never seen again
            return kept if len(kept) < len(candidates) else candidates
        left = candidates if len(kept) == len(candidates) else Candidates(kept)
        if len(self._rows) >= _MOST_ROWS:
            self._rows.clear()
        self._rows[id(candidates)] = (candidates, left)
        return left
