"""Conversations that grow: how many turns they have, how long people think, and what a turn repeats of the one before.

A request continues an earlier one if its messages begin with all of that one's. System prompts and tools are left out
of the comparison, so that a date in them does not hide the conversation. Traffic that holds hashes only, or plain
prompts, is compared by its blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.analyze.lengths import Distribution, Spread
from ext_proc.analyze.record import Record
from ext_proc.analyze.segments import Segment

OPEN = 50_000
"""Conversations watched at once; the one that was silent for longest is taken as ended."""


class Sessions(msgspec.Struct, frozen=True):
    """What is known of conversations.

    Attributes:
        conversations: Conversations found, those of one request included.
        growing: Those of two requests and more.
        growing_request_share: Share of requests that belong to these.
        turns: Requests per growing conversation.
        gap_seconds: Time from one request of a conversation to the next, where the traffic has times; it holds the
            time of the answer and the time to think.
        repeated_share: Share of all prompt tokens that the request before in the same conversation had too.
    """

    conversations: int
    growing: int
    growing_request_share: float
    turns: Spread
    gap_seconds: Spread
    repeated_share: float


class _Open(msgspec.Struct, gc=False):
    turns: int
    at: float | None
    tokens: int


class SessionFinder:
    """Follows conversations.

    Args:
        kept: conversations watched at once.
    """

    def __init__(self, kept: int = OPEN) -> None:
        self._kept = kept
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._turns = Distribution()
        self._gaps = Distribution()
        self._ended = self._growing = self._growing_requests = 0
        self._requests = self._tokens = self._repeated = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, record: Record, pieces: Sequence[Segment]) -> None:
        """Count a request; `pieces` are the segments of its prompt, if it has any."""
        self._requests += 1
        self._tokens += record.prompt_tokens
        keys = _keys(record, pieces)
        if not keys:
            return
        turn = self._continued(keys)
        if turn is None:
            turn = _Open(1, record.at, record.prompt_tokens)
        else:
            self._follow(turn, record)
        before = self._open.pop(keys[-1], None)
        if before is not None:
            self._end(before)
        self._open[keys[-1]] = turn
        if len(self._open) > self._kept:
            self._end(self._open.popitem(last=False)[1])

    def result(self) -> Sessions:
        """End all conversations and return the figures."""
        while self._open:
            self._end(self._open.popitem(last=False)[1])
        return Sessions(
            conversations=self._ended,
            growing=self._growing,
            growing_request_share=self._growing_requests / max(self._requests, 1),
            turns=self._turns.spread(),
            gap_seconds=self._gaps.spread(),
            repeated_share=self._repeated / max(self._tokens, 1),
        )

    def _continued(self, keys: Sequence[int]) -> _Open | None:
        """Find the conversation whose last request is the longest beginning of this one."""
        for key in reversed(keys[:-1]):
            found = self._open.pop(key, None)
            if found is not None:
                return found
        return None

    def _follow(self, turn: _Open, record: Record) -> None:
        turn.turns += 1
        if turn.at is not None and record.at is not None and record.at >= turn.at:
            self._gaps.add(record.at - turn.at)
        self._repeated += min(turn.tokens, record.prompt_tokens)
        turn.at, turn.tokens = record.at, record.prompt_tokens

    def _end(self, conversation: _Open) -> None:
        self._ended += 1
        if conversation.turns > 1:
            self._growing += 1
            self._growing_requests += conversation.turns
            self._turns.add(conversation.turns)


def _keys(record: Record, pieces: Sequence[Segment]) -> Sequence[int]:
    """Return a digest for each beginning of the request, the whole of it last."""
    messages = [piece for piece in pieces if piece.kind == "message" and not piece.is_system]
    if not messages:
        return record.chain
    digest = xxh3_64_intdigest(record.model.encode("utf-8", "surrogatepass"))
    keys: list[int] = []
    for message in messages:
        digest = xxh3_64_intdigest(message.data, digest)
        keys.append(digest)
    return keys
