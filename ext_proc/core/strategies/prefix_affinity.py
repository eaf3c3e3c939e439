"""prefix-affinity: the endpoint that owns the prompt's beginning by consistent hashing, unless it is overloaded.

For fleets that tell kvpicker nothing of what became of its requests: it needs no index. The key is the hash of the
prompt's first blocks. Of n candidates with t requests in flight altogether, the first one behind the key on a hash
ring takes the request whose own requests do not exceed

    max(ceil(load_bound * (t + 1) / n), free_requests) - 1

so no endpoint ever holds more than `load_bound` times the mean, but for a few that it may always hold. (Mirrokni,
Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.) A prompt without a whole block goes where the
fewest requests are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

import msgspec

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.ring import Ring
from ext_proc.core.strategies import Context, Ranking

_PLACED = 4
"""How many candidates are put in the order of the ring; the chosen one and fallbacks need no more."""


class PrefixAffinityParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of prefix-affinity.

    Attributes:
        prefix_tokens: tokens of the prompt's beginning that make the key, rounded up to whole blocks of the prefix
            index; deep enough to tell families of prompts apart, no deeper than what they share.
        load_bound: requests that an endpoint may hold, as a multiple of the mean; nearer to 1 spreads more and
            keeps less together.
        free_requests: requests that an endpoint may hold however few there are elsewhere. With 1 two requests of one
            family part when nothing else runs; more keep them together and let others wait behind them.
        virtual_nodes: points of each endpoint on the ring; more of them share the keys out more evenly.
    """

    prefix_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 256
    load_bound: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.25
    free_requests: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    virtual_nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100


class PrefixAffinity:
    """Consistent hashing with bounded loads."""

    Parameters: ClassVar[type[PrefixAffinityParameters]] = PrefixAffinityParameters

    def __init__(self, parameters: PrefixAffinityParameters | None = None) -> None:
        self._parameters = parameters or PrefixAffinityParameters()
        self._ring = Ring(self._parameters.virtual_nodes)

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:  # noqa: ARG002
        """Cost the owner of the prefix and those behind it their place, and all others more, by load."""
        loads = [load.in_flight for load in context.loads]
        key = self._key(context)
        if key is None:
            return Ranking([float(load) for load in loads], counts="requests in flight")
        count, parameters = len(loads), self._parameters
        bound = max(ceil(parameters.load_bound * (sum(loads) + 1) / count), parameters.free_requests)
        costs = [float(_PLACED + load) for load in loads]
        places = {endpoint.address: place for place, endpoint in enumerate(candidates)}
        self._ring.cover(places.keys())
        met = placed = 0
        for address in self._ring.walk(key):
            place = places.get(address)
            if place is None:
                continue
            met += 1
            if loads[place] < bound:
                costs[place] = float(placed)
                placed += 1
            if placed == _PLACED or met == count:
                break
        return Ranking(costs, counts="place on the ring")

    def _key(self, context: Context) -> int | None:
        """Return the link of the hash chain that covers the prefix; None without a chain."""
        chain, wanted = context.chain, self._parameters.prefix_tokens
        tokens = context.knowledge.tokens
        last = next((block for block in range(len(chain)) if tokens(block + 1) >= wanted), -1)
        return chain[last] if chain else None
