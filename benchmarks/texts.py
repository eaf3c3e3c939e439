"""Turns the requests of a workload into prompts of text that share exactly what their block ids share."""

from __future__ import annotations

import functools
import json
from hashlib import shake_128
from typing import Any

from benchmarks.bodies import MODEL
from ext_proc.sim.tokens import TOKEN_BYTES
from ext_proc.sim.workload import SimRequest, Workload


class Texts:
    """The prompts of a workload, four bytes of ASCII a token, as the simulated engine counts them.

    Equal block ids are equal text; different ones differ from their first bytes on. What a request has beyond its
    blocks is its own.
    """

    def __init__(self, workload: Workload) -> None:
        self._requests = workload.requests
        self._block_bytes = workload.block_tokens * TOKEN_BYTES

    def prompt(self, position: int, history: str = "") -> str:
        """Return the prompt of the request at a position.

        A follow-up begins with the conversation so far, which only whoever held it knows. What it adds is its own: a
        block that two follow-ups of one request have in common beyond that is not expected in any workload.

        Args:
            position: of the request in the workload.
            history: prompt and answer of the request that it follows.

        Raises:
            ValueError: the history is not as long as the workload says.
        """
        request = self._requests[position]
        size = request.prompt_tokens * TOKEN_BYTES
        if request.after is not None:
            before = self._requests[request.after]
            wanted = (before.prompt_tokens + before.output_tokens) * TOKEN_BYTES
            if len(history) != wanted or wanted > size:
                raise ValueError(f"request {position} follows on {len(history)} bytes; {wanted} are expected")
            return history + _filler(f"request {position}", size - wanted)
        shared = "".join(_block(block, self._block_bytes) for block in request.blocks)
        return shared + _filler(f"request {position}", size - len(shared))


def body(prompt: str, request: SimRequest) -> bytes:
    """Return what is posted to `/v1/completions`: a stream of exactly the request's output tokens, with its session.

    The session goes along because the simulator's picker knows it too, and breaks ties by it.
    """
    members: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.session:
        members["prompt_cache_key"] = request.session
    return json.dumps(members).encode()


@functools.lru_cache(maxsize=50_000)
def _block(block: int, size: int) -> str:
    return _filler(f"block {block}", size)


def _filler(name: str, size: int) -> str:
    """Return text that no other name has, free of anything that JSON escapes."""
    return shake_128(name.encode()).hexdigest(-(-size // 2))[:size]
