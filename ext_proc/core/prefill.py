"""What was predicted of a request's prefill, kept until its first token or its end tells how it was."""

from __future__ import annotations

import msgspec

LEAST_UNCACHED = 16
"""Tokens that are computed even if the whole prompt is cached."""


class Prefill(msgspec.Struct, frozen=True, gc=False):
    """What an endpoint has to compute of a prompt, as was predicted.

    Attributes:
        tokens: tokens of the prompt (L).
        uncached: those that are not cached (u).
        work: effective tokens (e), attention included.
        seconds: what they take (S).
        wait: seconds of waiting before (W + K).
        attention: the attention length (A) that was assumed, tokens; 0 if none was.
    """

    tokens: float = 0.0
    uncached: float = 0.0
    work: float = 0.0
    seconds: float = 0.0
    wait: float = 0.0
    attention: float = 0.0

    def given(self, hit: int) -> Prefill:
        """Return the same for another number of cached tokens; what predicts no work stays as it is."""
        uncached = max(self.tokens - hit, LEAST_UNCACHED)
        if not self.rate or not self.attention or uncached == self.uncached:
            return self
        work = uncached * (1 + (self.tokens - uncached / 2) / self.attention)
        return msgspec.structs.replace(self, uncached=uncached, work=work, seconds=work / self.rate)

    @property
    def rate(self) -> float:
        """The rate that was assumed, tokens/s; 0 if the strategy assumed none."""
        return self.work / self.seconds if self.seconds > 0 else 0.0


NO_PREFILL = Prefill()
