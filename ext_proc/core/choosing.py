"""What is chosen, and how a ranking is read: who wins a tie, who is tried next, what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from ext_proc.core.model import BlockHash, Decision, Endpoint, InferenceRequest
from ext_proc.core.prefill import LEAST_UNCACHED, NO_PREFILL, Prefill
from ext_proc.core.prompt_size import PromptSize
from ext_proc.core.signals import SLACK_REQUESTS, SLACK_USAGE, requests, usage
from ext_proc.core.strategies import Context, Ranking
from ext_proc.core.token_hits import TokenPrompt

MOST_ASKED = 8
"""Of equal candidates whose engines are compared."""


class Choice(msgspec.Struct, gc=False):
    """A decision, and what it takes to book it.

    Attributes:
        decision: where the request goes, and why.
        chain: hash chain of the prompt.
        depth: leading blocks of it that the chosen endpoint holds.
        deepest: the same of the candidate that holds most.
        size: how long the prompt is.
        prefill: what is predicted of its prefill there.
        output: tokens the answer is expected to have.
        tokens: the prompt by its tokens; None where they are not known.
    """

    decision: Decision
    chain: Sequence[BlockHash]
    depth: int
    deepest: int
    size: PromptSize
    prefill: Prefill
    output: float
    tokens: TokenPrompt | None = None


def fewest(costs: list[float], lowest: float, in_flight: list[int]) -> Sequence[int]:
    """Return the positions of the lowest cost: of those the ones with the fewest in flight."""
    equal: Sequence[int] = range(len(costs))
    counts = in_flight
    if costs.count(lowest) < len(costs):
        equal = [place for place, cost in enumerate(costs) if cost == lowest]
        counts = [in_flight[place] for place in equal]
    fewest = min(counts)
    if counts.count(fewest) < len(equal):
        equal = [place for place, count in zip(equal, counts, strict=True) if count == fewest]
    return equal


def drawn(equal: Sequence[int], candidates: Sequence[Endpoint], context: Context) -> int:
    """Return one of the positions of equal candidates: any whose engine has not much more to do than others say.

    Engines do work that is not ours as well, but what they say is old: it counts here, where nothing else decides, and
    of many only some are asked.
    """
    engines = context.knowledge.engines
    if len(equal) > 1 and engines is not None and engines.differ(context.now):
        if len(equal) > MOST_ASKED:
            first = int(context.generator.random() * len(equal))
            equal = [equal[place % len(equal)] for place in range(first, first + MOST_ASKED)]
        for read, slack in ((requests, SLACK_REQUESTS), (usage, SLACK_USAGE)):
            levels = context.knowledge.levels([candidates[place] for place in equal], read, context.now)
            if levels is not None:
                most = min(levels) + slack
                equal = [place for place, level in zip(equal, levels, strict=True) if level <= most]
    return equal[int(context.generator.random() * len(equal))]


def cheapest(costs: list[float], best: int, fallbacks: int) -> list[int]:
    """Return the chosen position and the next cheapest ones; of equal ones, those that follow the chosen one.

    Requests that share a tie then do not share their fallbacks.
    """
    count, left = len(costs), costs[best:] + costs[:best]
    left[0] = inf
    chosen = [best]
    while len(chosen) <= fallbacks and len(chosen) < count:
        following = left.index(min(left))
        left[following] = inf
        chosen.append((best + following) % count)
    return chosen


def position_of(candidates: Sequence[Endpoint], address: str | None) -> int | None:
    """Return the position of the candidate with an address; None if it is no candidate."""
    if address is None:
        return None
    return next((place for place, endpoint in enumerate(candidates) if endpoint.address == address), None)


def predicted(request: InferenceRequest, ranking: Ranking, context: Context, place: int) -> Prefill:
    """Keep what was predicted for one candidate; a strategy that prices no prefill predicts nothing."""
    if not ranking.prefills or not ranking.works:
        return Prefill(seconds=ranking.prefills[place]) if ranking.prefills else NO_PREFILL
    wait = (ranking.queues[place] if ranking.queues else 0.0) + (ranking.memories[place] if ranking.memories else 0.0)
    tokens = request.prompt_tokens
    uncached = max(tokens - context.hits[place], LEAST_UNCACHED)
    return Prefill(tokens, uncached, ranking.works[place], ranking.prefills[place], wait, ranking.attention)


def reason_of(ranking: Ranking, hit: int) -> str:
    """Say what decided: only a strategy that prices prefill looks at prefixes."""
    if not ranking.prefills:
        return "rank"
    return "prefix" if hit else "wait"
