"""One request inside a simulated engine."""

from __future__ import annotations

from ext_proc.core.model import BlockHash
from ext_proc.sim.workload import SimRequest


class Sequence:
    """The state of a request from its arrival at an engine to its end there.

    Attributes:
        request: what is asked.
        position: its position in the workload.
        target: tokens to prefill: the prompt, and after a preemption what was generated too.
        computed: tokens of the target whose KV is there.
        generated: tokens generated so far, as of the last time it was not decoding.
        chunk: tokens it prefills in the step that runs.
        named: visible blocks it uses, first to last.
        private: blocks it holds beside those.
        published: leading blocks of the prompt that it found or computed.
        hit: prompt tokens found in the cache at its first admission.
        work: tokens prefilled for it so far.
        preemptions: how often it lost its blocks.
        joined: decode round at which it began to decode; -1 while it does not.
        admitted: number of its admission, which tells who is the youngest.
    """

    __slots__ = (
        "admitted",
        "chunk",
        "computed",
        "generated",
        "hit",
        "joined",
        "named",
        "position",
        "preemptions",
        "private",
        "published",
        "request",
        "target",
        "work",
    )

    def __init__(self, position: int, request: SimRequest) -> None:
        self.position = position
        self.request = request
        self.target = request.prompt_tokens
        self.computed = 0
        self.generated = 0
        self.chunk = 0
        self.named: list[BlockHash] = []
        self.private = 0
        self.published = 0
        self.hit = 0
        self.work = 0
        self.preemptions = 0
        self.joined = -1
        self.admitted = -1

    @property
    def held(self) -> int:
        """Blocks it holds."""
        return self.private + len(self.named)

    @property
    def recomputed(self) -> int:
        """Tokens prefilled beyond the uncached prompt; below 0 if others had computed the prompt in the meantime."""
        return self.work - (self.request.prompt_tokens - self.hit)

    def attention(self, chunk: int) -> float:
        """Return the token pairs that a chunk of its prefill attends to."""
        return chunk * (self.computed + chunk / 2)
