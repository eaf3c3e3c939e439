"""What a simulated engine can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ext_proc.sim.scheduler import PRESETS, Limits

DEFAULT_MODEL = "sim-model"
DEFAULT_CONTEXT = 131_072
FEATURES = ("metrics", "models", "tokenize", "usage-details", "sleep-mode", "sleep-metric")
"""What engines have or not, by version and by how they were started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of one simulated engine.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        models: models that it serves, like a base model and its adapters: they share the hardware, not the cache.
        preset: the hardware it plays, one of `scheduler.PRESETS`.
        speed: all times are divided by it; infinity answers without any delay.
        kv_tokens: KV memory in tokens; None takes the preset's.
        block_size: tokens per KV block.
        max_num_seqs: sequences that run at the same time.
        name: what it calls itself in the `x-sim-engine` header; empty takes its address.
        max_waiting: sequences that may wait before it answers 503; None for no bound.
        retry_after: seconds for the Retry-After header of that 503; None sends none.
        max_model_len: longest prompt with its answer in tokens; None takes 131,072, or the KV memory if less.
        record: how many received requests `/sim/requests` remembers.
        record_file: a file to which every received request is appended, so that it outlives the engine.
        kv_events: port to publish KV events at; 0 takes a free one, None publishes none.
        kv_replay: port to answer at who missed some; 0 takes a free one.
        without: features that it lacks, of `FEATURES`.
        seed: of the generator that decides which requests a fault with a probability hits.
    """

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = (DEFAULT_MODEL,)
    preset: str = "h100-8b"
    speed: float = math.inf
    kv_tokens: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    name: str = ""
    max_waiting: int | None = None
    retry_after: float | None = None
    max_model_len: int | None = None
    record: int = 1024
    record_file: Path | None = None
    kv_events: int | None = None
    kv_replay: int = 0
    without: frozenset[str] = frozenset()
    seed: int = 0

    @property
    def limits(self) -> Limits:
        """The scheduler's share of the options."""
        preset = PRESETS[self.preset]
        return Limits(
            kv_tokens=self.kv_tokens or preset.kv_tokens,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            token_budget=preset.token_budget,
            max_waiting=self.max_waiting,
        )

    @property
    def context_limit(self) -> int:
        """Longest prompt with its answer, in tokens; always fits into the KV memory."""
        limits = self.limits
        memory = limits.kv_tokens // limits.block_size * limits.block_size
        return min(self.max_model_len or DEFAULT_CONTEXT, memory)
