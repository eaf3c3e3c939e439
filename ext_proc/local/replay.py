"""What round robin would have got: the same requests, in the order sent, on simulated caches that are still empty.

Each request runs to its end before the next begins. That favours round robin: of requests that really ran side by
side, the later ones find the whole prefix of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ext_proc.sim import tokens
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.scheduler import PRESETS, Scheduler, SimSequence
from ext_proc.sim.templates import render_chat


def replay(requests: Sequence[tuple[dict[str, Any], str]], options: EngineOptions, engines: Sequence[int]) -> float:
    """Share of prompt tokens that engines find in their caches.

    Args:
        requests: bodies of chat requests with their answers, in the order sent.
        options: what every engine is like.
        engines: number of the engine that each request goes to.
    """
    caches = {engine: Scheduler(PRESETS[options.preset], options.limits) for engine in set(engines)}
    cached = prompt = 0
    for (body, answer), engine in zip(requests, engines, strict=True):
        sequence = _sequence(body, answer, options.block_size)
        caches[engine].run_at_once(sequence, 0.0)
        cached += sequence.cached_tokens
        prompt += sequence.prompt_tokens
    return cached / prompt if prompt else 0.0


def round_robin(requests: Sequence[tuple[dict[str, Any], str]], options: EngineOptions, engines: int) -> float:
    """Share of prompt tokens found in caches if requests had gone to `engines` engines in turn."""
    return replay(requests, options, [place % engines for place in range(len(requests))])


def _sequence(body: dict[str, Any], answer: str, block_size: int) -> SimSequence:
    prompt = render_chat(body)
    chain = tokens.hash_chain(prompt + answer.encode(), block_size, tokens.cache_seed(body["model"]))
    return SimSequence(tokens.count_tokens(prompt), tokens.count_tokens(answer.encode()), chain)
