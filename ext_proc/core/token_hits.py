"""How many tokens of a prompt, known exactly, each engine holds: by its reports and by what was just sent to it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from ext_proc.core.model import BlockHash, InferenceRequest
from ext_proc.core.prefix_index import held_depth
from ext_proc.core.prompts import RequestHead
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenChain

EXPECTED_S: Final = 5.0
"""Seconds, beside the wait that was predicted, for which a prompt that was sent counts as held without a report."""

_LEAST_BETWEEN_SWEEPS: Final = 4096


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
    share a prefix and come close together then go together.

    Args:
        resident: what engines report, block by block.
        expected_s: seconds for which a prompt that was sent counts as held without a report.
    """

    def __init__(self, resident: ResidentIndex, expected_s: float = EXPECTED_S) -> None:
        self.resident = resident
        self._expected_s = expected_s
        self._sent: dict[int, _Sent] = {}

    def held(self, prompt: TokenPrompt, slots: Sequence[int], now: float) -> list[int | None]:
        """Return how many leading tokens of a prompt an engine in each slot need not compute.

        None where the engine does not report, or reports blocks of another size than those of the prompt.
        """
        chain, most = prompt.chain, prompt.reusable
        return [
            None if tokens is None else min(max(tokens, self._expected(chain, slot, now)), most)
            for slot, tokens in zip(slots, self.resident.tokens_held(chain, slots), strict=True)
        ]

    def correct(
        self, hits: Sequence[int], prompt: TokenPrompt, slots: Sequence[int], now: float
    ) -> tuple[list[int], tuple[bool, ...]]:
        """Put what engines report in place of what is believed of them; returns it and which of it is reported."""
        held = self.held(prompt, slots, now)
        corrected = [hit if tokens is None else tokens for hit, tokens in zip(hits, held, strict=True)]
        return corrected, tuple([tokens is not None for tokens in held])

    def sent(self, slot: int, prompt: TokenPrompt, now: float, wait: float = 0.0) -> None:
        """Note that a prompt was sent, and will be prefilled after some seconds of waiting."""
        if self.resident.block_tokens(slot) != prompt.chain.block_tokens:
            return
        self._sent.setdefault(slot, _Sent()).add(prompt.chain.hashes, now, now + wait + self._expected_s)

    def remove(self, slot: int) -> None:
        """Forget what was sent to a slot, which may not have come to be held; what its engine reports stands."""
        self._sent.pop(slot, None)

    def _expected(self, chain: TokenChain, slot: int, now: float) -> int:
        sent = self._sent.get(slot)
        return sent.depth(chain.hashes, now) * chain.block_tokens if sent is not None else 0


class _Sent:
    """Blocks that were sent to one slot, and until when they are expected; in milliseconds, since stamps are whole.

    A block's time is the latest of all prompts that hold it, so along a chain times never rise.
    """

    __slots__ = ("_roomy", "_until")

    def __init__(self) -> None:
        self._until: dict[BlockHash, int] = {}
        self._roomy = _LEAST_BETWEEN_SWEEPS

    def add(self, blocks: Sequence[BlockHash], now: float, until: float) -> None:
        times, end = self._until, int(until * 1000)
        for block in blocks:
            if times.get(block, 0) < end:
                times[block] = end
        if len(times) > self._roomy:
            self._sweep(int(now * 1000))

    def depth(self, blocks: Sequence[BlockHash], now: float) -> int:
        moment = int(now * 1000)
        if not blocks or self._until.get(blocks[0], 0) <= moment:
            return 0
        return held_depth(self._until, moment, blocks, len(blocks))

    def _sweep(self, moment: int) -> None:
        self._until = {block: end for block, end in self._until.items() if end > moment}
        self._roomy = max(2 * len(self._until), _LEAST_BETWEEN_SWEEPS)
