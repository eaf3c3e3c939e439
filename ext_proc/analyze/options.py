"""What an analysis is told."""

from __future__ import annotations

import msgspec

from ext_proc.sim.fleet.presets import ENGINES, REFERENCE


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an analysis.

    Attributes:
        engines: engines that the comparison of policies assumes.
        kv_tokens: tokens that the KV cache of one engine holds.
        kv_bytes_per_token: bytes of KV cache that one token takes; None leaves sizes in tokens.
        models: the only models to look at; none looks at all.
        show_prompts: whether excerpts of prompts may be shown.
        smallest_block: tokens of the smallest block.
    """

    engines: int = ENGINES
    kv_tokens: int = REFERENCE.kv_tokens
    kv_bytes_per_token: int | None = None
    models: frozenset[str] = frozenset()
    show_prompts: bool = False
    smallest_block: int = 64
