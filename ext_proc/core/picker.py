"""The decision: `EndpointPicker.pick` chooses the endpoint that a request is sent to.

Filters narrow the endpoints down and say what they removed, the pool's strategy puts a cost on those that are left,
and the lowest cost wins. The pick is booked at once, so the next decision already sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite

import msgspec

from ext_proc.core.affinity import Affinity
from ext_proc.core.candidates import Candidates
from ext_proc.core.errors import ModelNotFound, ModelRequired, NoReadyEndpoint, Refusal, SubsetEmpty
from ext_proc.core.hashing import BYTES_PER_TOKEN, PromptHasher
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import (
    GENERATING,
    BlockHash,
    Decision,
    Endpoint,
    FilterReport,
    InferenceRequest,
    Operation,
)
from ext_proc.core.observer import Observer
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import ObservedIndex
from ext_proc.core.reuse import ReuseMeter
from ext_proc.core.strategies import Context, Generator, Ranking, Strategy
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.terms import Terms

NEARLY_FREE = frozenset({Operation.LOOKUP, Operation.COUNT_TOKENS})
"""Operations that cost an engine next to nothing and therefore claim nothing in the ledger."""

MODELLESS = frozenset({Operation.LOOKUP, Operation.GENERATE, Operation.MEDIA})
"""Operations that may go to the default pool, or to any if there is none, when they name no model."""


class Rejection(msgspec.Struct, frozen=True):
    """Why a request gets no endpoint, and what each filter left."""

    refusal: Refusal
    filters: tuple[FilterReport, ...] = ()


class EndpointPicker:
    """Chooses endpoints and books what it chose.

    Args:
        registry: the endpoints.
        ledger: work in flight.
        index: who holds which prefix.
        health: which endpoints may be chosen.
        hasher: prompt to hash chain.
        strategies: the strategy of each pool.
        observer: hears of strategies that fail.
        instance: a name that no other kvpicker of the same Envoy has; begins every decision id.
        fallbacks: endpoints named after the chosen one, for Envoy's retries.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        ledger: Ledger,
        index: ObservedIndex,
        health: HealthMonitor,
        hasher: PromptHasher,
        strategies: Mapping[str, tuple[str, Strategy]],
        observer: Observer,
        instance: str,
        fallbacks: int = 2,
    ) -> None:
        self.strategies = strategies
        self.fallbacks = fallbacks
        self.sessions = Affinity()
        self.responses = Affinity()
        self.reuse = ReuseMeter(hasher.end, BYTES_PER_TOKEN)
        self._registry = registry
        self._ledger = ledger
        self._index = index
        self._health = health
        self._hasher = hasher
        self._observer = observer
        self.instance = instance
        self._spare: tuple[str, Strategy] = ("least-request", LeastRequest())
        self._turn = 0

    def pick(
        self,
        request: InferenceRequest,
        now: float,
        generator: Generator,
        subset: Collection[str] | None = None,
    ) -> Decision | Rejection:
        """Choose an endpoint for a request and book it.

        Args:
            request: what was understood of the HTTP request.
            now: monotonic seconds.
            generator: breaks ties.
            subset: the only addresses the data plane allows; None allows all.
        """
        candidates, filters = self._filter(request, subset)
        if not candidates:
            return Rejection(self._refusal(request, subset, filters), filters)
        eligible = self._health.eligible(candidates, now)
        filters = (*filters, _report("health", len(candidates), len(eligible)))
        if not isinstance(eligible, Candidates):
            eligible = Candidates(eligible)
        return self._decide(request, eligible, filters, now, generator)

    def _decide(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        filters: tuple[FilterReport, ...],
        now: float,
        generator: Generator,
    ) -> Decision:
        nearly_free = request.operation in NEARLY_FREE
        sole_model = self._registry.snapshot.sole_model
        chain = [] if request.unhashed or nearly_free else self._hasher.chain(request, sole_model)
        context = self._context(request, chain, candidates, now, generator)
        name, ranking = self._rank(request, candidates, context)
        in_flight = [load.in_flight for load in context.loads]
        best, reason = self._choose(request, candidates, ranking, in_flight, context)
        places = _cheapest(ranking.costs, best, self.fallbacks)
        terms = Terms(candidates, ranking, context.hits, in_flight)
        decision = Decision(
            id=f"{self.instance}-{self._turn:x}",
            endpoints=tuple([candidates[place] for place in places]),
            request=msgspec.structs.replace(request, prompt=b"") if request.prompt else request,
            chain_length=len(chain),
            hit_tokens=context.hits[best],
            fallback_hits=tuple([context.hits[place] for place in places[1:]]),
            reason=reason,
            strategy=name,
            terms=terms,
            filters=filters,
            decided_at=now,
        )
        # What waits for the outcome, perhaps for minutes, is a small copy: memory touched by every request is slow.
        kept = msgspec.structs.replace(decision, terms=(), filters=())
        if not request.unhashed:
            self.reuse.add(chain, request.prompt_tokens, max(context.hits))
        seconds = ranking.prefills[best] if ranking.prefills else 0.0
        self._book(kept, chain, seconds, context.output, counted=not nearly_free)
        return decision

    def picks_without_model(self) -> bool:
        """Tell whether a request may be placed before its body is seen: if there is one model to choose from."""
        snapshot = self._registry.snapshot
        return snapshot.sole_model is not None or not snapshot.models

    def _filter(
        self, request: InferenceRequest, subset: Collection[str] | None
    ) -> tuple[Sequence[Endpoint], tuple[FilterReport, ...]]:
        snapshot = self._registry.snapshot
        candidates: Sequence[Endpoint] = snapshot.candidates(request.model)
        if request.model is None and not candidates and request.operation in MODELLESS:
            candidates = snapshot.by_pool.get(snapshot.default_pool or "", snapshot.endpoints)
        filters = (_report("model", len(snapshot.endpoints), len(candidates)),)
        if subset is None:
            return candidates, filters
        allowed = [endpoint for endpoint in candidates if endpoint.address in subset]
        return allowed, (*filters, _report("subset", len(candidates), len(allowed)))

    def _refusal(
        self, request: InferenceRequest, subset: Collection[str] | None, filters: tuple[FilterReport, ...]
    ) -> Refusal:
        snapshot = self._registry.snapshot
        if subset is not None and (not subset or filters[0].after):
            return SubsetEmpty("No endpoint that the gateway allows can serve this request.")
        if not snapshot.endpoints:
            return NoReadyEndpoint("No inference endpoint is available. Try again later.")
        if request.model is None:
            names = ", ".join(sorted(snapshot.models)[:10])
            return ModelRequired(f"The request must name a model in its 'model' field. Served here: {names}.")
        if snapshot.serves(request.model):
            return NoReadyEndpoint("No endpoint of the requested model is available. Try again later.")
        return ModelNotFound(f"The model '{_shown(request.model)}' does not exist or is not served here.")

    def _context(
        self,
        request: InferenceRequest,
        chain: Sequence[BlockHash],
        candidates: Candidates,
        now: float,
        generator: Generator,
    ) -> Context:
        self._turn += 1
        return Context(
            now=now,
            generator=generator,
            loads=self._ledger.loads_of(candidates.slots),
            hits=self._hits(request, chain, candidates),
            output=self._ledger.expected_output(request) if request.operation in GENERATING else 0.0,
            residence=self._ledger.residence,
            turn=self._turn,
        )

    def _hits(self, request: InferenceRequest, chain: Sequence[BlockHash], candidates: Candidates) -> list[int]:
        end, ceiling = self._hasher.end, request.prompt_tokens
        held = self._index.match(chain, lambda blocks: min(end(blocks) // BYTES_PER_TOKEN, ceiling)) if chain else None
        if not held:
            return [0] * len(candidates)
        get = held.get
        return [get(slot, 0) for slot in candidates.slots]

    def _rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> tuple[str, Ranking]:
        name, strategy = self.strategies.get(candidates[0].pool, self._spare)
        try:
            return name, _checked(strategy.rank(request, candidates, context), len(candidates))
        except Exception as error:  # noqa: BLE001  a plug-in of a third party must not fail the request
            self._observer.strategy_failed(name, error)
        name, strategy = self._spare
        return name, strategy.rank(request, candidates, context)

    def _choose(
        self,
        request: InferenceRequest,
        candidates: Sequence[Endpoint],
        ranking: Ranking,
        in_flight: list[int],
        context: Context,
    ) -> tuple[int, str]:
        costs = ranking.costs
        if len(costs) == 1:
            return 0, "only_candidate"
        if request.previous_response:
            tied = _position(candidates, self.responses.address(request.previous_response, context.now))
            if tied is not None:
                return tied, "previous_response"
        lowest = min(costs)
        best = costs.index(lowest)
        if costs.count(lowest) == 1:
            return best, _reason(ranking, context.hits[best])
        if request.session:
            tied = _position(candidates, self.sessions.address(_session_of(request), context.now))
            if tied is not None and costs[tied] == lowest:
                return tied, "session"
        return _fewest(costs, lowest, in_flight, context.generator), "tie"

    def _book(
        self, decision: Decision, chain: Sequence[BlockHash], seconds: float, output: float, *, counted: bool
    ) -> None:
        endpoint, request, now = decision.chosen, decision.request, decision.decided_at
        learnt_from = self._index.learn(endpoint.slot, chain) if chain else 0
        self._ledger.take(decision, chain, learnt_from, seconds=seconds, output=output, now=now, counted=counted)
        self._health.dispatched(endpoint, now)
        if request.session:
            self.sessions.tie(_session_of(request), endpoint.address, now)


@functools.lru_cache(maxsize=4096)
def _report(name: str, before: int, after: int) -> FilterReport:
    return FilterReport(name, before, after)


def _fewest(costs: list[float], lowest: float, in_flight: list[int], generator: Generator) -> int:
    """Return one of the positions of the lowest cost: of those with the fewest in flight, any."""
    equal: Sequence[int] = range(len(costs))
    counts = in_flight
    if costs.count(lowest) < len(costs):
        equal = [place for place, cost in enumerate(costs) if cost == lowest]
        counts = [in_flight[place] for place in equal]
    fewest = min(counts)
    if counts.count(fewest) < len(equal):
        equal = [place for place, count in zip(equal, counts, strict=True) if count == fewest]
    return equal[int(generator.random() * len(equal))]


def _cheapest(costs: list[float], best: int, fallbacks: int) -> list[int]:
    """Return the chosen position and the next cheapest ones; of equal ones, those that follow the chosen one.

    Requests that share a tie then do not share their fallbacks.
    """
    left = costs[best:] + costs[:best]
    left[0] = inf
    chosen = [best]
    for _ in range(min(fallbacks, len(costs) - 1)):
        following = left.index(min(left))
        left[following] = inf
        chosen.append((best + following) % len(costs))
    return chosen


def _checked(ranking: Ranking, candidates: int) -> Ranking:
    """Return a stranger's ranking, fit for use.

    Raises:
        ValueError: it has not one finite number for each candidate.
    """
    ranking.costs = costs = list(ranking.costs)
    for column in (costs, ranking.queues or costs, ranking.prefills or costs, ranking.memories or costs):
        if len(column) != candidates:
            raise ValueError(f"a strategy must give one number for each of {candidates} candidates")
    if not isfinite(sum(costs)) or not isfinite(sum(ranking.prefills)):
        raise ValueError("a strategy must give finite numbers")
    return ranking


def _reason(ranking: Ranking, hit: int) -> str:
    """Say what decided: only a strategy that prices prefill looks at prefixes."""
    if not ranking.prefills:
        return "rank"
    return "prefix" if hit else "wait"


def _position(candidates: Sequence[Endpoint], address: str | None) -> int | None:
    if address is None:
        return None
    return next((place for place, endpoint in enumerate(candidates) if endpoint.address == address), None)


def _session_of(request: InferenceRequest) -> str:
    """Name a session per model: a client that uses two models in turn has a place for each."""
    return f"{request.model}\n{request.session}"


def _shown(model: str) -> str:
    """Shorten a stranger's model name, for an error message."""
    printable = "".join(character if character.isprintable() else "?" for character in model[:100])
    return printable.encode("utf-8", "replace").decode()
