"""A request as the analysis sees it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ext_proc.core.model import BlockHash


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of the traffic.

    Attributes:
        model: the model it asks for; empty where it names none.
        chain: hashes of the whole blocks of its prompt, in order.
        sizes: tokens of each of these blocks.
        prompt_tokens: tokens of the whole prompt, estimated for text.
        prompt: the canonical prompt; empty where the traffic holds hashes only.
        namespace: parts beside the model that separate caches, such as `cache_salt`.
        output_tokens: generated tokens; None where the traffic does not say.
        at: when it came, in seconds of any clock; None where the traffic does not say.
    """

    model: str
    chain: Sequence[BlockHash]
    sizes: Sequence[int]
    prompt_tokens: int
    prompt: bytes = b""
    namespace: tuple[str, ...] = ()
    output_tokens: int | None = None
    at: float | None = None
