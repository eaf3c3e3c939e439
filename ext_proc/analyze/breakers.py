"""What breaks prefixes: near-equal prompts are found by the texts they share, compared, and the reasons tallied.

Memory is bounded: a few hundred recent prompts are kept, each cut to its beginning, and the texts that lead to them.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.analyze.divergence import Break, Prompt, compare
from ext_proc.analyze.segments import Segment
from ext_proc.ops.text import printable

KEPT_PROMPTS = 256
KEPT_BYTES = 65_536
"""Of a longer prompt the beginning is compared."""

_KEPT_ANCHORS = 20_000
_ANCHORS = 32
_ANCHORED_PIECES = 6
_LEAST_ANCHOR = 24
_SENTENCES = re.compile(rb"[^\n.!?\xc0\xc1\xf5-\xff]{%d,400}" % _LEAST_ANCHOR)
_ANCHORED_BYTES = 16_384
_ALL_UNTIL = 5_000
_THEN_ONE_IN = 16
_KEPT_TALLIES = 200


class Breaker(msgspec.Struct, frozen=True):
    """Something that keeps prompts from sharing more.

    Attributes:
        kind: What differs: a date or time, an identifier, the order of tools, and so on.
        where: The part of the request in which prompts part, such as `messages[0] (system)`.
        characters: How far into that part the first difference lies, at least.
        offset_tokens: How far into the prompt, at least.
        requests: Compared requests in which it was found.
        request_share: The same as a share of all compared requests.
        lost_tokens: Tokens per such request that are equal behind the difference and cannot be shared.
        lost_share: The tokens lost as a share of the prompt tokens of all compared requests.
        example: Text around one difference, before and after, only where prompts may be shown.
    """

    kind: str
    where: str
    characters: int
    offset_tokens: int
    requests: int
    request_share: float
    lost_tokens: float
    lost_share: float
    example: str = ""

    def cells(self, *, text: bool) -> tuple[str, ...]:
        """Write it as a row of a table; `text` adds the example."""
        return (
            self.kind,
            self.where,
            f"{self.characters:,}",
            f"{self.offset_tokens:,}",
            f"{self.request_share:.1%}",
            f"{self.lost_tokens:,.0f}",
            f"{self.lost_share:.1%}",
            *([self.example] if text else []),
        )


class _Tally(msgspec.Struct):
    """What one kind of difference in one part of the request comes to."""

    requests: int
    lost: int
    first: Break


class Breakers:
    """Compares requests with earlier ones of the same model.

    Args:
        show: whether texts around differences may be shown.
    """

    def __init__(self, *, show: bool = False) -> None:
        self.compared = 0
        self._show = show
        self._seen = 0
        self._tokens = 0
        self._prompts: OrderedDict[int, Prompt] = OrderedDict()
        self._anchors: OrderedDict[int, int] = OrderedDict()
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def __len__(self) -> int:
        return len(self._prompts) + len(self._anchors) + len(self._tallies)

    def add(self, model: str, namespace: tuple[str, ...], pieces: Sequence[Segment], tokens: int) -> None:
        """Study a request; of long traffic only some are."""
        self._seen += 1
        if not pieces or (self._seen > _ALL_UNTIL and self._seen % _THEN_ONE_IN):
            return
        self.compared += 1
        self._tokens += tokens
        prompt = Prompt(namespace, _beginning(pieces))
        seed = xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"))
        anchors = list(_anchors_of(prompt.pieces, seed))
        nearest = self._nearest(anchors)
        if nearest is not None:
            found = compare(nearest, prompt)
            if found is not None:
                self._tally(found)
        self._keep(prompt, anchors)

    def breakers(self, most: int) -> list[Breaker]:
        """Return what costs most, the worst first."""
        tallies = sorted(self._tallies.values(), key=lambda tally: tally.lost, reverse=True)
        return [self._breaker(tally) for tally in tallies[:most]]

    def _nearest(self, anchors: Sequence[int]) -> Prompt | None:
        """Return the kept prompt that shares most anchors, of equal ones the latest."""
        votes = Counter(number for anchor in anchors if (number := self._anchors.get(anchor)) in self._prompts)
        if not votes:
            return None
        number = max(votes, key=lambda number: (votes[number], number or 0))
        return self._prompts[number] if number is not None else None

    def _keep(self, prompt: Prompt, anchors: Sequence[int]) -> None:
        self._prompts[self._seen] = prompt
        if len(self._prompts) > KEPT_PROMPTS:
            self._prompts.popitem(last=False)
        for anchor in anchors:
            self._anchors[anchor] = self._seen
            self._anchors.move_to_end(anchor)
        while len(self._anchors) > _KEPT_ANCHORS:
            self._anchors.popitem(last=False)

    def _tally(self, found: Break) -> None:
        key = (found.kind, found.where)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) < _KEPT_TALLIES:
                self._tallies[key] = _Tally(1, found.lost, found)
            return
        tally.requests += 1
        tally.lost += found.lost
        if found.tokens < tally.first.tokens:
            tally.first = found

    def _breaker(self, tally: _Tally) -> Breaker:
        first = tally.first
        return Breaker(
            kind=first.kind,
            where=printable(first.where),
            characters=first.characters,
            offset_tokens=first.tokens,
            requests=tally.requests,
            request_share=tally.requests / self.compared,
            lost_tokens=tally.lost / tally.requests,
            lost_share=tally.lost / max(self._tokens, 1),
            example=f"{printable(first.old)} | {printable(first.new)}" if self._show and first.old else "",
        )


def _beginning(pieces: Sequence[Segment]) -> list[Segment]:
    """Return the pieces within the bytes that are kept; the last of them may be cut."""
    kept: list[Segment] = []
    left = KEPT_BYTES
    for piece in pieces:
        if left <= 0:
            break
        data = piece.data
        kept.append(piece if len(data) <= left else msgspec.structs.replace(piece, data=data[:left]))
        left -= len(data)
    return kept


def _anchors_of(pieces: Sequence[Segment], seed: int) -> Iterator[int]:
    """Give digests of the texts by which near-equal prompts find each other: whole pieces, and sentences of the first.

    They are drawn alternately from the pieces, so that many tools do not hide the messages.
    """
    given = 0
    for piece in pieces[:_ANCHORS]:
        if len(piece.data) >= _LEAST_ANCHOR:
            yield piece.digest ^ seed
    for piece in pieces[:_ANCHORED_PIECES]:
        for found in _SENTENCES.finditer(piece.data[:_ANCHORED_BYTES]):
            yield xxh3_64_intdigest(found[0], seed)
            given += 1
            if given >= _ANCHORS:
                return
