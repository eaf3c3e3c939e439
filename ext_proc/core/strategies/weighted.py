"""weighted: the highest weighted sum of scores, as users of llm-d know it.

    cost_j = 1 - sum(weight * score_j) / sum(weight)

Scores are in [0, 1] and listed in `ext_proc.core.strategies.scorers`; deploy/strategies.md says which of llm-d's
plug-ins each stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking
from ext_proc.core.strategies.scorers import SCORERS

Weight: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weight of each scorer; what is not named does not count.

    Attributes:
        prefix: share of the prompt that the index believes to be cached.
        queue: requests waiting in the engine, the fewest best.
        kv_usage: share of the engine's KV cache that is free.
        running: requests that the engine works on, the fewest best.
        in_flight: requests that kvpicker has in flight, the fewest best.
        tokens: tokens that kvpicker has in flight, the fewest best.
        lora: whether the endpoint answered for the model lately, or has room for another adapter.
        latency: measured seconds per generated token, in proportion to the fastest.
    """

    prefix: Weight = 0.0
    queue: Weight = 0.0
    kv_usage: Weight = 0.0
    running: Weight = 0.0
    in_flight: Weight = 0.0
    tokens: Weight = 0.0
    lora: Weight = 0.0
    latency: Weight = 0.0

    def __post_init__(self) -> None:
        """Refuse weights that leave nothing to decide by."""
        if not any(msgspec.structs.astuple(self)):
            raise ValueError("at least one scorer must have a weight above 0")


class WeightedParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of weighted.

    Attributes:
        scorers: weight of each scorer that counts. Naming some replaces the default,
            `{prefix: 3, queue: 2, kv_usage: 2, in_flight: 2}`: llm-d's, and kvpicker's own count of requests for
            engines whose metrics nobody reads.
    """

    scorers: Weights = Weights(prefix=3.0, queue=2.0, kv_usage=2.0, in_flight=2.0)


class Weighted:
    """Adds up scores."""

    Parameters: ClassVar[type[WeightedParameters]] = WeightedParameters

    def __init__(self, parameters: WeightedParameters | None = None) -> None:
        weights = msgspec.structs.asdict((parameters or WeightedParameters()).scorers)
        total = sum(weights.values())
        self._scorers = [(name, SCORERS[name], weight / total) for name, weight in weights.items() if weight]

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Cost each candidate what its score lacks of the best possible one."""
        costs = [1.0] * len(candidates)
        told = {}
        for name, scorer, weight in self._scorers:
            told[name] = scores = scorer(request, candidates, context)
            costs = [cost - weight * score for cost, score in zip(costs, scores, strict=True)]
        return Ranking(costs, scores=told, counts="what its score lacks of 1")
