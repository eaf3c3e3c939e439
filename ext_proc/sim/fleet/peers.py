"""How other pickers choose, for comparison: strategies that run under the same picker with the same views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking
from ext_proc.sim.fleet.kvpickers import Scrape

_TIE = 1e-9
_NOTHING = Scrape(waiting=0, running=0, kv_usage=0.0, ttft_sum=0.0, ttft_count=0)


class WeightedScrapes:
    """The default scorers of the Gateway API inference extension: 3 * prefix + 2 * queue + 2 * KV cache.

    prefix is the matched share of the prompt, queue is (max - waiting) / (max - min) over the candidates or 1 if all
    are equal, KV cache is 1 - usage; waiting and usage are as of the last scrape. Ties fall at random.
    """

    def __init__(self, prefix: float = 3.0, queue: float = 2.0, memory: float = 2.0) -> None:
        self._weights = prefix, queue, memory
        self._scrapes: dict[int, Scrape] = {}

    def scraped(self, slot: int, scrape: Scrape, now: float) -> None:  # noqa: ARG002
        """Keep the last scrape of a slot."""
        self._scrapes[slot] = scrape

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return the negated weighted sums."""
        scrapes = [self._scrapes.get(endpoint.slot, _NOTHING) for endpoint in candidates]
        waiting = [scrape.waiting for scrape in scrapes]
        most, spread = max(waiting), max(waiting) - min(waiting)
        prefix, queue, memory = self._weights
        length = request.prompt_tokens or 1
        tie = context.generator.random
        return Ranking(
            [
                -prefix * hit / length
                - queue * ((most - scrape.waiting) / spread if spread else 1.0)
                - memory * (1 - scrape.kv_usage)
                + _TIE * tie()
                for hit, scrape in zip(context.hits, scrapes, strict=True)
            ]
        )


class NewTokensTimesBatch:
    """LMetric (arXiv 2603.15202): prompt tokens to compute, times the requests there would be."""

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Return the products."""
        length = request.prompt_tokens
        return Ranking(
            [
                float(max(length - hit, 1) * (load.in_flight + 1))
                for hit, load in zip(context.hits, context.loads, strict=True)
            ]
        )


class CacheAware:
    """The cache_aware policy of the SGLang router with its defaults.

    If the loads (requests in flight) differ by more than `absolute` and by more than the factor `relative`, the least
    loaded; else the best match if it is more than `threshold` of the prompt; else whoever was given the fewest new
    tokens so far, which stands for the smallest tree.
    """

    def __init__(self, absolute: int = 64, relative: float = 1.5, threshold: float = 0.3) -> None:
        self._absolute = absolute
        self._relative = relative
        self._threshold = threshold
        self._inserted: Counter[int] = Counter()

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Return 0 for the chosen one and 1 for the others."""
        slots = [endpoint.slot for endpoint in candidates]
        chosen = self._choose(request, slots, context)
        self._inserted[slots[chosen]] += request.prompt_tokens - context.hits[chosen]
        costs = [1.0] * len(slots)
        costs[chosen] = 0.0
        return Ranking(costs)

    def _choose(self, request: InferenceRequest, slots: Sequence[int], context: Context) -> int:
        loads = [load.in_flight for load in context.loads]
        least, most = min(loads), max(loads)
        if most - least > self._absolute and most > self._relative * least:
            return loads.index(least)
        best = max(context.hits)
        if best > self._threshold * request.prompt_tokens:
            return list(context.hits).index(best)
        trees = [self._inserted[slot] for slot in slots]
        return trees.index(min(trees))
