"""What a simulated engine runs on, and what it is given to do."""

from __future__ import annotations

import msgspec

from benchmarks.independent.cache import BLOCK_TOKENS, Holding, Run


class Hardware(msgspec.Struct, frozen=True):
    """Speed and size of an engine; the default is Llama-3.1-8B in bf16 on one H100 SXM.

    None of it was measured. The model has 7.5e9 weights in its layers and head, 524,288 FLOP of attention per token and
    token of context (4 * 4,096 * 32), and 131,072 bytes of KV cache per token; the GPU has 989 TFLOP/s, 3.35 TB/s and
    80 GB by its data sheet. The shares of those peaks that are reached are assumptions.

    Attributes:
        blocks: blocks of KV memory: (0.92 * 80 GB - 16 GB of weights - 1 GB) / (16 * 131,072 bytes).
        budget: tokens of a step; vLLM's default for an API server on an H100.
        most: sequences that run at a time; the same.
        overhead: seconds of a step that no GPU work hides; an assumption for a scheduler that runs ahead.
        sequence: seconds per sequence of a step (sampling, output); an assumption.
        weights: seconds to read all weights once, at 75 % of the bandwidth.
        linear: seconds per token of all but attention, at 55 % of the peak.
        attention: seconds per token and token of context, at 45 % of the peak.
        read: seconds to read the KV cache of a token, at 75 % of the bandwidth.
    """

    blocks: int = 27_000
    budget: int = 8192
    most: int = 1024
    overhead: float = 1.0e-3
    sequence: float = 15e-6
    weights: float = 6.4e-3
    linear: float = 27.6e-6
    attention: float = 1.18e-9
    read: float = 52e-9

    def slower(self, factor: float) -> Hardware:
        """Return hardware that takes so many times as long for everything."""
        names = ("overhead", "sequence", "weights", "linear", "attention", "read")
        return msgspec.structs.replace(self, **{name: getattr(self, name) * factor for name in names})

    def decoding(self, sequences: int, context: float) -> float:
        """Return the seconds of a step that only decodes."""
        fixed = self.overhead + self.sequence * sequences + self.read * context
        return fixed + max(self.weights, self.linear * sequences)

    def prefilling(self, tokens: int, length: int) -> float:
        """Return the seconds of computing the last `tokens` of `length` tokens, without what each step takes anyhow."""
        return self.linear * tokens + self.attention * tokens * (length - tokens / 2)


class Job(msgspec.Struct, eq=False):
    """A request as an engine sees it, and what became of it; times in seconds.

    Attributes:
        runs: the full blocks of the prompt.
        prompt: its tokens.
        output: tokens that will be generated, at least 1.
        answer: name of the first block that the answer fills.
        arrived: when the engine got it.
        first_token: when its first token came.
        finished: when its last one came.
        cached: tokens of the prompt found in the cache when it was first admitted; None before.
        hit: the same when the engine got it.
        computed: tokens that are in the cache.
        generated: tokens generated so far.
        target: tokens to compute until the next token is sampled.
        holding: what it holds while it runs.
        context: while it decodes, its tokens less the number of the step; constant.
    """

    runs: tuple[Run, ...]
    prompt: int
    output: int
    answer: int
    arrived: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    cached: int | None = None
    hit: int = 0
    computed: int = 0
    generated: int = 0
    target: int = 0
    holding: Holding | None = None
    context: int = 0

    @property
    def stream(self) -> tuple[Run, ...]:
        """All blocks that it can fill, the answer's too."""
        blocks = (self.prompt + self.output) // BLOCK_TOKENS - self.prompt // BLOCK_TOKENS
        return (*self.runs, Run(self.answer, blocks)) if blocks else self.runs
