"""How fast the simulated engines are, and where each number comes from.

A step of an engine takes

    a + b * prefill_tokens + e * sum(chunk * (context_before + chunk / 2)) + c * decoding + d * decode_context

seconds: the usual linear model of a step, with the attention of prefill and decode as terms of their own.

| preset | a ms | b us/token | e ns/token/context | c us | d ns/context token | KV tokens | budget |
|---|---|---|---|---|---|---|---|
| h100-8b | 5.8 | 27 | 1.3 | 40 | 50 | 450,000 | 8,192 |
| a100-70b-tp4 | 25 | 200 | 5.2 | 100 | 60 | 400,000 | 2,048 |
| l40s-8b | 21 | 110 | 4.0 | 60 | 170 | 180,000 | 2,048 |

Provenance, per column:

* a, c and KV tokens of h100-8b: fits that inference-sim/inference-sim publishes in `defaults.yaml` (commit 1a6eb353,
  vLLM 0.8.4, Llama-3.1-8B on one H100: 5,753 us + 17.3 us a prefill token; 29,205 KV blocks of 16 tokens).
* b of h100-8b: 27 us, a model FLOP utilisation of 60 %; the fit's 17.3 us would be 93 % of the peak.
* a100-70b-tp4: the same source's Llama-3.3-70B on four H100 (76.4 us a prefill token), times 2.6 for the A100.
* l40s-8b: roofline from the data sheet's FLOPs and memory bandwidth.
* e: 4 * d_model * layers FLOPs a token and context token, at about 400 TFLOP/s; d: the bytes of KV a context token has,
  at 60 to 75 % of the memory bandwidth.

None of it has been checked against hardware: trust ratios between strategies, not seconds.
"""

from __future__ import annotations

from math import sqrt

import msgspec


class EnginePreset(msgspec.Struct, frozen=True, kw_only=True):
    """The timing and the size of one engine.

    Attributes:
        name: what the command line calls it.
        step_s: seconds of an empty step (a).
        prefill_s: seconds a prefill token takes (b).
        attention_s: seconds a prefill token takes per token of context before it (e).
        decode_s: seconds a decoding request takes per step (c).
        context_s: seconds a step takes per token of context that is decoded upon (d).
        kv_tokens: capacity of the KV cache, tokens.
        step_tokens: most tokens computed in one step.
        max_running: most requests that run at once.
        ranks: data-parallel ranks, among which it balances; all numbers but `kv_tokens` are of one of them.
    """

    name: str
    step_s: float
    prefill_s: float
    attention_s: float
    decode_s: float
    context_s: float
    kv_tokens: int
    step_tokens: int
    max_running: int = 256
    ranks: int = 1

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second, attention left out (R)."""
        return 1 / self.prefill_s

    @property
    def attention_tokens(self) -> float:
        """Context length at which attention costs as much as all else (A), tokens."""
        return self.prefill_s / self.attention_s

    def prefill_seconds(self, tokens: int, attention: float) -> float:
        """Return what prefill adds to a step.

        Args:
            tokens: tokens that are prefilled.
            attention: token pairs that these attend to, the sum of chunk * (context before + chunk / 2).
        """
        return self.prefill_s * tokens + self.attention_s * attention

    def decode_seconds(self, rounds: int, decoding: int, context: int) -> float:
        """Return what steps take beside their prefill; each lengthens the context by a token per request.

        Args:
            rounds: how many steps.
            decoding: requests that generate a token in each.
            context: tokens that those generate upon in the first, together.
        """
        first = self.step_s + self.decode_s * decoding + self.context_s * context
        return rounds * first + self.context_s * decoding * rounds * (rounds - 1) / 2

    def rounds_in(self, seconds: float, decoding: int, context: int) -> float:
        """Return how many steps are over after so many seconds: the inverse of `decode_seconds`."""
        square = self.context_s * decoding / 2
        linear = self.step_s + self.decode_s * decoding + self.context_s * context - square
        return (sqrt(linear * linear + 4 * square * seconds) - linear) / (2 * square)


PRESETS = {
    preset.name: preset
    for preset in (
        EnginePreset(
            name="h100-8b",
            step_s=5.8e-3,
            prefill_s=27e-6,
            attention_s=1.3e-9,
            decode_s=40e-6,
            context_s=50e-9,
            kv_tokens=450_000,
            step_tokens=8192,
        ),
        EnginePreset(
            name="a100-70b-tp4",
            step_s=25e-3,
            prefill_s=200e-6,
            attention_s=5.2e-9,
            decode_s=100e-6,
            context_s=60e-9,
            kv_tokens=400_000,
            step_tokens=2048,
        ),
        EnginePreset(
            name="l40s-8b",
            step_s=21e-3,
            prefill_s=110e-6,
            attention_s=4.0e-9,
            decode_s=60e-6,
            context_s=170e-9,
            kv_tokens=180_000,
            step_tokens=2048,
        ),
    )
}
"""Presets by name."""

REFERENCE = PRESETS["h100-8b"]
"""What commands assume where nobody says, and what the rates of the named workloads are meant for."""

ENGINES = 8
"""How many of them."""
