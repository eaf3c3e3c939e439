"""What a simulated run yields: a record per request, and the numbers that strategies are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """When a request counts as served well.

    Attributes:
        ttft_s: seconds to the first token that an empty prompt may take.
        prefill_rate: prompt tokens that each further second allows.
        tpot_s: mean seconds per output token after the first.
    """

    ttft_s: float = 2.0
    prefill_rate: float = 37_000.0
    tpot_s: float = 0.1


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request, as its client saw it.

    Attributes:
        arrived: seconds since the start of the run.
        ttft: seconds from the arrival to the first token.
        tpot: mean seconds per output token after the first; 0 if there is no second.
        e2e: seconds from the arrival to the last token.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens generated.
        hit_tokens: prompt tokens found in the cache.
        predicted_hit: prompt tokens that kvpicker expected to be cached.
        recomputed_tokens: tokens computed again after preemptions.
        endpoint: position of the engine that served.
        preemptions: how often the engine took its blocks away.
        attempts: how often it was sent, to whichever engine.
    """

    arrived: float
    ttft: float
    tpot: float
    e2e: float
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    predicted_hit: int
    recomputed_tokens: int
    endpoint: int
    preemptions: int
    attempts: int

    def meets(self, slo: Slo) -> bool:
        """Tell whether the request was served well."""
        return self.ttft <= slo.ttft_s + self.prompt_tokens / slo.prefill_rate and self.tpot <= slo.tpot_s


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers.

    Attributes:
        requests: how many there were.
        ttft_mean: mean seconds to the first token.
        ttft_p50: median of the same.
        ttft_p99: 99th percentile of the same.
        tpot_mean: mean seconds per output token, over requests with more than one.
        e2e_mean: mean seconds to the last token.
        hit_ratio: share of the prompt tokens that were found in a cache.
        goodput: share of the requests that met the SLO.
        balance: coefficient of variation, over the engines, of the uncached prompt tokens served; 0 is even.
        preemptions: how often an engine took blocks away.
    """

    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    e2e_mean: float
    hit_ratio: float
    goodput: float
    balance: float
    preemptions: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run yields.

    Attributes:
        workload: name of the workload.
        engines: how many engines there were.
        records: one per request, in the order of the workload.
        seconds: simulated seconds from the start to the last token.
    """

    workload: str
    engines: int
    records: tuple[Record, ...]
    seconds: float

    def summary(self, slo: Slo | None = None) -> Summary:
        """Return the numbers that strategies are compared by.

        Args:
            slo: when a request counts as served well.
        """
        records, limits = self.records, slo or Slo()
        waits = sorted(record.ttft for record in records)
        paces = [record.tpot for record in records if record.output_tokens > 1]
        prompts = sum(record.prompt_tokens for record in records)
        return Summary(
            requests=len(records),
            ttft_mean=_mean(waits),
            ttft_p50=_quantile(waits, 0.5),
            ttft_p99=_quantile(waits, 0.99),
            tpot_mean=_mean(paces),
            e2e_mean=_mean([record.e2e for record in records]),
            hit_ratio=sum(record.hit_tokens for record in records) / (prompts or 1),
            goodput=_mean([record.meets(limits) for record in records]),
            balance=_variation(self.uncached()),
            preemptions=sum(record.preemptions for record in records),
        )

    def uncached(self) -> list[int]:
        """Return the prompt tokens that each engine had to compute, without what it computed again."""
        tokens = [0] * self.engines
        for record in self.records:
            tokens[record.endpoint] += record.prompt_tokens - record.hit_tokens
        return tokens


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least that share does not exceed."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def _variation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sqrt(_mean([(value - mean) ** 2 for value in values])) / mean if mean else 0.0
