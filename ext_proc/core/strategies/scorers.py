"""Scorers: each puts a number in [0, 1] on every candidate; higher is better.

An unknown value is neutral: it gets the mean of the known ones, and if none is known, all get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from types import MappingProxyType
from typing import TypeAlias

from ext_proc.core.knowledge import EngineView
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context

Scorer: TypeAlias = Callable[[InferenceRequest, Sequence[Endpoint], Context], list[float]]

_ADAPTER_SLOTS = 4
_FREE_SLOT = 0.8


def _prefix(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the share of the prompt that the index believes to be cached."""
    length = max(request.prompt_tokens, 1)
    return [min(hit / length, 1.0) for hit in context.hits]


def _queue(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the requests that wait in the engine; the shortest queue 1, the longest 0."""
    return _least_loaded(candidates, context, lambda view: view.waiting)


def _running(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the requests that the engine works on; the fewest 1, the most 0."""
    return _least_loaded(candidates, context, lambda view: view.running)


def _kv_usage(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the share of the engine's KV cache that is free."""
    usages = context.knowledge.levels(candidates, lambda view: view.kv_usage, context.now)
    return [1.0] * len(candidates) if usages is None else [1 - min(max(usage, 0.0), 1.0) for usage in usages]


def _in_flight(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the requests that kvpicker has in flight; the fewest 1, the most 0."""
    return _lowest_is_best([load.in_flight for load in context.loads])


def _tokens(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the tokens that kvpicker has in flight; the fewest 1, the most 0."""
    return _lowest_is_best([load.tokens for load in context.loads])


def _latency(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:  # noqa: ARG001
    """Score the measured seconds per token; the fastest 1, one that takes twice as long 0.5.

    In proportion and not from least to most, which would blow noise between equal endpoints up to the whole range.
    """
    latencies = context.knowledge.reputations.latencies(candidates)
    least = min((latency for latency in latencies if latency is not None), default=0.0)
    return _filled([None if latency is None else least / latency for latency in latencies])


def _lora(request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> list[float]:
    """Score an endpoint that answered for the model lately 1, one with room for another adapter 0.8, any other 0."""
    if request.model is None:
        return [1.0] * len(candidates)
    lately = [context.knowledge.served.lately(endpoint, _ADAPTER_SLOTS) for endpoint in candidates]
    return [
        1.0 if request.model in models else _FREE_SLOT if len(models) < _ADAPTER_SLOTS else 0.0 for models in lately
    ]


SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "prefix": _prefix,
        "queue": _queue,
        "kv_usage": _kv_usage,
        "running": _running,
        "in_flight": _in_flight,
        "tokens": _tokens,
        "lora": _lora,
        "latency": _latency,
    }
)
"""Every scorer by its name in the configuration."""


def _least_loaded(
    candidates: Sequence[Endpoint], context: Context, read: Callable[[EngineView], float | None]
) -> list[float]:
    """Turn the least of what engines say into 1 and the greatest into 0; what is old comes closer to the mean."""
    levels = context.knowledge.levels(candidates, read, context.now)
    if levels is None:
        return [1.0] * len(candidates)
    views = context.knowledge.views(candidates, context.now)
    said = [value for view in views if view is not None and (value := read(view)) is not None]
    least, most = min(said), max(said)
    return [(most - level) / (most - least) if most > least else 1.0 for level in levels]


def _lowest_is_best(values: Sequence[float | None]) -> list[float]:
    """Turn the least value into 1, the greatest into 0, and all into 1 if they are equal."""
    known = [value for value in values if value is not None]
    least, most = min(known, default=0.0), max(known, default=0.0)
    span = most - least
    if span <= 0:
        return [1.0] * len(values)
    return _filled([None if value is None else (most - value) / span for value in values])


def _filled(scores: Sequence[float | None]) -> list[float]:
    known = [score for score in scores if score is not None]
    neutral = fsum(known) / len(known) if known else 1.0
    return [neutral if score is None else score for score in scores]
