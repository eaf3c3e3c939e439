"""What routing would gain: the traffic, request by request, over the caches of some engines under simple policies.

There is no time in it: requests follow each other and nothing waits. Above a memory bound the caches are miniatures,
that is, blocks are sampled by hash and capacities shrink alike (Waldspurger et al., "Cache Modeling and Optimization
using Miniature Simulations", USENIX ATC 17).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Final

import msgspec

from ext_proc.analyze.curve import HASH_RANGE
from ext_proc.analyze.lru import PrefixCache
from ext_proc.core.model import BlockHash

ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
AFFINITY: Final = "prefix-affinity"
ONE_CACHE: Final = "one shared cache"

_MOST_BLOCKS = 2_000_000
_BOUND = 1.25
"""An engine with more than so many times the mean of recent work is left alone, as in bounded-load consistent hashing
(Mirrokni et al., 2016)."""

_MEMORY = 50
"""Work counts for about so many requests per engine."""


class PolicyResult(msgspec.Struct, frozen=True):
    """What a policy came to.

    Attributes:
        policy: Its name; `one shared cache` is a yardstick, one LRU cache with the memory of all engines: a policy
            comes near it at best, though not strictly, since engines apart may keep by luck what it lets go.
        hit_ratio: Share of prompt tokens found in the cache of the engine.
        prefill_tokens: Prompt tokens left to compute.
        imbalance: Prefill tokens of the busiest engine, as a multiple of the mean.
    """

    policy: str
    hit_ratio: float
    prefill_tokens: int
    imbalance: float


class _Fleet:
    """Engines with a cache each."""

    def __init__(self, engines: int, capacity: float) -> None:
        self.caches = [PrefixCache(capacity) for _ in range(engines)]
        self.prefill = [0.0] * engines

    def serve(self, engine: int, chain: Sequence[BlockHash], sizes: Sequence[int], tokens: float) -> float:
        """Let an engine serve a prompt, and return the tokens it had to compute."""
        cache = self.caches[engine]
        left = max(tokens - sum(sizes[: cache.held(chain)]), 0.0)
        cache.use(chain, sizes)
        self.prefill[engine] += left
        return left


class Comparison:
    """Sends each request to one engine per policy.

    Args:
        engines: how many there are.
        kv_tokens: tokens that the cache of each holds.
        smallest_block: tokens of the smallest block, which bounds the number of blocks.
    """

    def __init__(self, engines: int, kv_tokens: int, smallest_block: int) -> None:
        # Three policies and the shared cache hold the same memory each.
        blocks = 4 * engines * kv_tokens / max(smallest_block, 1)
        self.rate = min(1.0, _MOST_BLOCKS / blocks)
        self._threshold = int(HASH_RANGE * self.rate)
        capacity = kv_tokens * self.rate
        self._fleets = {name: _Fleet(engines, capacity) for name in (ROUND_ROBIN, RANDOM, AFFINITY)}
        self._fleets[ONE_CACHE] = _Fleet(1, capacity * engines)
        self._work = [0.0] * engines
        self._decay = 1.0 - 1.0 / (_MEMORY * engines)
        self._generator = random.Random(0)  # noqa: S311  equal traffic gives equal figures
        self._requests = 0
        self._tokens = 0

    def serve(self, chain: Sequence[BlockHash], sizes: Sequence[int], tokens: int) -> None:
        """Send one request to an engine under each policy."""
        rest = tokens - sum(sizes)
        if self.rate < 1.0:
            chosen = [block < self._threshold for block in chain]
            chain, sizes = list(compress(chain, chosen)), list(compress(sizes, chosen))
        share = sum(sizes) + rest * self.rate
        engines = len(self._work)
        fleets = self._fleets
        fleets[ROUND_ROBIN].serve(self._requests % engines, chain, sizes, share)
        fleets[RANDOM].serve(int(self._generator.random() * engines), chain, sizes, share)
        fleets[ONE_CACHE].serve(0, chain, sizes, share)
        self._serve_near_prefix(fleets[AFFINITY], chain, sizes, share)
        self._requests += 1
        self._tokens += tokens

    def results(self) -> list[PolicyResult]:
        """Return what each policy came to."""
        return [self._result(name, fleet) for name, fleet in self._fleets.items()]

    def prefill_saved(self) -> float:
        """Return the share of round robin's prefill that prefix-aware routing avoids; below 0 if it costs more."""
        before, after = (sum(self._fleets[name].prefill) for name in (ROUND_ROBIN, AFFINITY))
        return 1.0 - after / before if before else 0.0

    def _serve_near_prefix(
        self, fleet: _Fleet, chain: Sequence[BlockHash], sizes: Sequence[int], tokens: float
    ) -> None:
        """Take the engine that holds most, among those with no more than their share of recent work."""
        sums = [0, *accumulate(sizes)]
        work = self._work
        limit = _BOUND * sum(work) / len(work) + tokens
        best, best_key = 0, (-1.0, 0.0)
        for engine, (cache, load) in enumerate(zip(fleet.caches, work, strict=True)):
            held = sums[cache.held(chain)]
            if load + tokens - held <= limit and (held, -load) > best_key:
                best, best_key = engine, (held, -load)
        left = fleet.serve(best, chain, sizes, tokens)
        self._work = [load * self._decay for load in work]
        self._work[best] += left

    def _result(self, name: str, fleet: _Fleet) -> PolicyResult:
        prefill = sum(fleet.prefill) / self.rate
        mean = sum(fleet.prefill) / len(fleet.prefill)
        return PolicyResult(
            policy=name,
            hit_ratio=min(max(1.0 - prefill / self._tokens, 0.0), 1.0) if self._tokens else 0.0,
            prefill_tokens=round(prefill),
            imbalance=max(fleet.prefill) / mean if mean else 1.0,
        )
