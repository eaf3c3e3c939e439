"""How many tokens of a prompt, known exactly, each engine holds: by its reports and by what was just sent to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from ext_proc.core.holdings import held_depth
from ext_proc.core.model import BlockHash, Decision, InferenceRequest
from ext_proc.core.prefill import NO_PREFILL, Prefill
from ext_proc.core.prompts import RequestHead
from ext_proc.core.ranks import RankLoads
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenChain

EXPECTED_S: Final = 5.0
"""Seconds, beside the wait that was predicted, for which a prompt that was sent counts as held without a report."""

_USUAL_RATE: Final = 8_000.0
"""Prefill tokens per second, where the strategy counts no seconds."""

_REPORTED_S: Final = 0.1
"""Seconds after the end of a request by which its engine's reports are here; measured are a few milliseconds."""


class TokenPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt by its exact tokens.

    Attributes:
        chain: hashes of its whole blocks.
        count: how many tokens there are.
    """

    chain: TokenChain
    count: int

    @property
    def reusable(self) -> int:
        """Tokens that a cache can save at most: whole blocks, and the last token is always computed."""
        size = self.chain.block_tokens
        return max(self.count - 1, 0) // size * size


Found: TypeAlias = TokenPrompt | Awaitable[TokenPrompt | None] | None
"""The tokens of a request, at once or after a while; None if they are not to be had in time."""


class TokenSource(Protocol):
    """Knows the tokens of requests. What it returns to wait for ends by itself within a bound and never raises."""

    def find(self, request: InferenceRequest, head: RequestHead, body: bytes) -> Found:
        """Look for the tokens of a request whose body is as the client sent it."""


class TokenHits:
    """Answers for slots whose engine reports what it holds; others are not its business.

    Until an engine's first report on a prompt comes, the prompt counts as held by whom it was sent to: requests that
    share a prefix and come close together then go together. It counts while its request runs, when an engine cannot
    evict it; after that only reports count. Of an engine that chooses among its data-parallel ranks it is one rank that
    will hold it, so it counts as their mean, as reports do.

    Args:
        resident: what engines report, block by block.
        expected_s: seconds for which a prompt that was sent counts as held without a report.
    """

    def __init__(self, resident: ResidentIndex, expected_s: float = EXPECTED_S) -> None:
        self.resident = resident
        self._expected_s = expected_s
        self._sent: dict[str, _Sent] = {}
        self._over: deque[tuple[float, str]] = deque()
        self._copies: dict[int, dict[int | None, dict[BlockHash, int]]] = {}
        self._loads = RankLoads()

    def held(self, prompt: TokenPrompt, slots: Sequence[int], now: float) -> list[int | None]:
        """Return how many leading tokens of a prompt an engine in each slot need not compute.

        None where the engine does not report, or reports blocks of another size than those of the prompt.
        """
        self._expire(now)
        chain, most = prompt.chain, prompt.reusable
        return [
            None if tokens is None else min(max(tokens, self._expected(chain, slot)), most)
            for slot, tokens in zip(slots, self.resident.tokens_held(chain, slots), strict=True)
        ]

    def correct(
        self, hits: Sequence[int], prompt: TokenPrompt, slots: Sequence[int], now: float
    ) -> tuple[list[int], tuple[bool, ...]]:
        """Put what engines report in place of what is believed of them; returns it and which of it is reported."""
        held = self.held(prompt, slots, now)
        corrected = [hit if tokens is None else tokens for hit, tokens in zip(hits, held, strict=True)]
        return corrected, tuple([tokens is not None for tokens in held])

    def pinned(self, decision: Decision, prompt: TokenPrompt, prefill: Prefill, now: float) -> tuple[Decision, Prefill]:
        """Name the data-parallel rank of a decision's endpoint, where engines are told.

        Only a rank that every endpoint of the decision has is named: a retry elsewhere carries the same name. What is
        predicted is what that rank holds.

        Args:
            decision: what was decided.
            prompt: the prompt of the request.
            prefill: what was predicted of its prefill.
            now: monotonic seconds.

        Returns:
            The decision, and what is predicted of its prefill at that rank.
        """
        if not self.resident.ranks(decision.endpoints[0].slot) or not decision.exact or not decision.exact[0]:
            return decision, prefill
        ranks = min(self.resident.ranks(endpoint.slot) for endpoint in decision.endpoints)
        if not ranks:
            return decision, prefill
        held = self._held_by_rank(prompt, decision.chosen.slot)[:ranks]
        rate = prefill.rate or _USUAL_RATE
        rank = self._loads.choose(decision.chosen.slot, [(prompt.count - own) / rate for own in held], now)
        fallbacks = [
            self._held_by_rank(prompt, endpoint.slot)[rank] if is_exact else hit
            for endpoint, is_exact, hit in zip(
                decision.endpoints[1:], decision.exact[1:], decision.fallback_hits, strict=True
            )
        ]
        decision = msgspec.structs.replace(decision, rank=rank, hit_tokens=held[rank], fallback_hits=tuple(fallbacks))
        return decision, prefill.given(held[rank])

    def sent(
        self,
        name: str,
        slot: int,
        prompt: TokenPrompt,
        now: float,
        prefill: Prefill = NO_PREFILL,
        rank: int | None = None,
    ) -> None:
        """Note that a prompt was sent.

        Args:
            name: names the request.
            slot: where it was sent to.
            prompt: what was sent.
            now: monotonic seconds.
            prefill: what was predicted of its prefill.
            rank: the data-parallel rank that was named, if any.
        """
        if rank is not None:
            self._loads.sent(name, slot, rank, prefill.seconds, now)
        if not self.resident.has_blocks_of(slot, prompt.chain.block_tokens):
            return
        self._sent[name] = _Sent(slot, rank, prompt.chain.hashes, now + prefill.wait + self._expected_s)
        copies = self._copies.setdefault(slot, {}).setdefault(rank, {})
        for block in prompt.chain.hashes:
            copies[block] = copies.get(block, 0) + 1

    def ended(self, name: str, now: float, *, computed: bool) -> None:
        """Note that a request is over; if its prompt was computed, the engine's report is there or on its way."""
        self._loads.ended(name)
        if name not in self._sent:
            return
        if computed:
            self._over.append((now + _REPORTED_S, name))
        else:
            self._forget(name)

    def remove(self, slot: int) -> None:
        """Forget what was sent to a slot; what its engine reports is for others to forget."""
        for name in [name for name, sent in self._sent.items() if sent.slot == slot]:
            del self._sent[name]
        self._copies.pop(slot, None)
        self._loads.remove(slot)

    def _held_by_rank(self, prompt: TokenPrompt, slot: int) -> list[int]:
        reported, sent = self.resident.tokens_by_rank(prompt.chain, slot), self._copies.get(slot, {})
        return [
            min(max(tokens, _expected(prompt.chain, sent[rank]) if rank in sent else 0), prompt.reusable)
            for rank, tokens in enumerate(reported)
        ]

    def _expected(self, chain: TokenChain, slot: int) -> int:
        sent = self._copies.get(slot)
        most = max([_expected(chain, copies) for copies in sent.values()], default=0) if sent else 0
        return most // self.resident.own_choices(slot) if most else 0

    def _expire(self, now: float) -> None:
        while self._over and self._over[0][0] <= now:
            self._forget(self._over.popleft()[1])
        while self._sent and (first := next(iter(self._sent.items())))[1].until <= now:
            self._forget(first[0])

    def _forget(self, name: str) -> None:
        sent = self._sent.pop(name, None)
        copies = self._copies.get(sent.slot, {}).get(sent.rank) if sent is not None else None
        if sent is None or copies is None:
            return
        for block in sent.blocks:
            left = copies[block] - 1
            if left:
                copies[block] = left
            else:
                del copies[block]


def _expected(chain: TokenChain, copies: Mapping[BlockHash, int]) -> int:
    if not copies or not chain.hashes or chain.hashes[0] not in copies:
        return 0
    # Prompts come and go as a whole, so along a chain counts never rise.
    return held_depth(copies, 0, chain.hashes, len(chain.hashes)) * chain.block_tokens


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """A prompt on its way: where to, the rank that was named if any, its blocks, and until when it counts as held."""

    slot: int
    rank: int | None
    blocks: Sequence[BlockHash]
    until: float
