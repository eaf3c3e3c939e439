"""The decision: `EndpointPicker.pick` chooses the endpoint that a request is sent to.

Filters narrow the endpoints down and say what they removed, the strategy of the model, or else of the pool, puts a cost
on those that are left, and the lowest cost wins. The pick is booked at once, so the next decision already sees it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

import msgspec

from ext_proc.core.affinity import Affinity
from ext_proc.core.booking import Booking
from ext_proc.core.candidates import Candidates
from ext_proc.core.choosing import Choice, cheapest, drawn, fewest, position_of, predicted, reason_of
from ext_proc.core.errors import UNSTOPPABLE, ConfigError, Refusal
from ext_proc.core.expectations import Expectation, Expectations
from ext_proc.core.filters import Filters, Gate, refusal
from ext_proc.core.generator import Generator
from ext_proc.core.hashing import Hasher
from ext_proc.core.health import HealthMonitor
from ext_proc.core.knowledge import Knowledge
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import (
    GENERATING,
    NEARLY_FREE,
    BlockHash,
    Decision,
    Endpoint,
    FilterReport,
    InferenceRequest,
)
from ext_proc.core.observer import Observer
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import PrefixIndex
from ext_proc.core.prompt_size import PromptSize, measured
from ext_proc.core.rates import RateLearner
from ext_proc.core.reputation import Reputations
from ext_proc.core.reuse import ReuseMeter
from ext_proc.core.strategies import Context, Ranking, Strategy
from ext_proc.core.strategies.checking import checked
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.terms import Terms
from ext_proc.core.token_hits import TokenHits, TokenPrompt


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
        rates: how fast endpoints prefill.
        expectations: how long answers will be.
        hasher: prompt to hash chain.
        strategies: the strategy of each pool.
        model_strategies: the strategies of models that have one of their own.
        observer: hears of strategies that fail.
        instance: a name that no other kvpicker of the same Envoy has; begins every decision id.
        fallbacks: endpoints named after the chosen one, for Envoy's retries.
        token_hits: what engines that report it hold, for prompts whose tokens are known; None if none reports.
        gates: filters by the state of endpoints, in the order they are asked; None asks the health alone.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        ledger: Ledger,
        index: PrefixIndex,
        health: HealthMonitor,
        rates: RateLearner,
        expectations: Expectations,
        hasher: Hasher,
        strategies: Mapping[str, tuple[str, Strategy]],
        observer: Observer,
        instance: str,
        fallbacks: int = 2,
        model_strategies: Mapping[str, tuple[str, Strategy]] | None = None,
        token_hits: TokenHits | None = None,
        gates: Sequence[Gate] | None = None,
    ) -> None:
        self.strategies = strategies
        self.model_strategies = model_strategies or {}
        self.fallbacks = fallbacks
        self.sessions = Affinity()
        self.responses = Affinity()
        self.reuse = ReuseMeter(hasher.tokens)
        self._registry = registry
        self._ledger = ledger
        self._index = index
        self._filters = Filters((health,) if gates is None else gates)
        self._rates = rates
        self._expectations = expectations
        self._hasher = hasher
        self.token_hits = token_hits
        self._observer = observer
        self.knowledge = Knowledge(reputations=Reputations(health), sessions=self.sessions, tokens=hasher.tokens)
        self.instance = instance
        self._spare: tuple[str, Strategy] = ("least-request", LeastRequest())
        self._turn = 0
        self._booking = Booking(index, ledger, health, rates, self.reuse, self.sessions)

    def pick(
        self,
        request: InferenceRequest,
        now: float,
        generator: Generator,
        subset: Collection[str] | None = None,
        tokens: TokenPrompt | None = None,
    ) -> Decision | Rejection:
        """Choose an endpoint for a request and book it.

        Args:
            request: what was understood of the HTTP request.
            now: monotonic seconds.
            generator: breaks ties.
            subset: the only addresses the data plane allows; None allows all.
            tokens: the prompt by its tokens; None where they are not known.
        """
        choice = self.choose(request, now, generator, subset, tokens)
        if isinstance(choice, Rejection):
            return choice
        self._booking.book(choice, self.token_hits)
        return choice.decision

    def choose(
        self,
        request: InferenceRequest,
        now: float,
        generator: Generator,
        subset: Collection[str] | None = None,
        tokens: TokenPrompt | None = None,
    ) -> Choice | Rejection:
        """Choose as `pick` does, and book nothing."""
        snapshot = self._registry.snapshot
        filters = self._filters.reports(request, subset, snapshot, now, generator)
        candidates = filters[-1].left
        if not candidates:
            return Rejection(refusal(request, subset, snapshot, filters), filters)
        if not isinstance(candidates, Candidates):
            candidates = Candidates(candidates)
        return self._decide(request, candidates, filters, now, generator, tokens)

    def twin(self, observer: Observer) -> EndpointPicker:
        """Return a picker that sees the same endpoints, loads and prefixes, and whose `choose` leaves no trace here.

        What a choice alters (turns, the memory of strategies, the order of sessions) the twin has of its own.

        Raises:
            ConfigError: a strategy cannot be copied.
        """
        twin = copy.copy(self)
        try:
            twin.strategies = copy.deepcopy(self.strategies)
            twin.model_strategies = copy.deepcopy(self.model_strategies)
        except Exception as error:  # a third party's object may hold anything
            raise ConfigError(f"a strategy cannot be copied for a dry run: {error}; give it __deepcopy__") from error
        twin.sessions, twin.responses = self.sessions.copy(), self.responses.copy()
        twin.knowledge = msgspec.structs.replace(self.knowledge, sessions=twin.sessions)
        twin._rates = self._rates.twin()  # noqa: SLF001  it is one of us
        twin._observer = observer  # noqa: SLF001  as above
        return twin

    def _decide(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        filters: tuple[FilterReport, ...],
        now: float,
        generator: Generator,
        tokens: TokenPrompt | None,
    ) -> Choice:
        chain, depths = self._held(request, candidates)
        expected = self._expectations.of(request.model or self._registry.snapshot.sole_model)
        size = measured(request, expected, tokens)
        # From here on nobody needs the text: neither strategies nor what is kept until the outcome.
        request = msgspec.structs.replace(request, prompt=b"", prompt_tokens=size.tokens)
        deepest = max(depths)
        hits, exact = self._cached(depths, deepest, size, tokens, candidates.slots, now)
        context = self._context(request, chain, deepest, hits, candidates, expected, now, generator)
        name, replaced, ranking = self._rank(request, candidates, context)
        in_flight = [load.in_flight for load in context.loads]
        best, reason = self._best(request, candidates, ranking, in_flight, context)
        places = cheapest(ranking.costs, best, self.fallbacks)
        decision = Decision(
            id=f"{self.instance}-{self._turn:x}",
            endpoints=tuple([candidates[place] for place in places]),
            request=request,
            chain_length=len(chain),
            hit_tokens=context.hits[best],
            fallback_hits=tuple([context.hits[place] for place in places[1:]]),
            reason=reason,
            strategy=name,
            terms=Terms(candidates, ranking, context.hits, in_flight),
            filters=filters + ranking.filters if ranking.filters else filters,
            decided_at=now,
            inside=ranking.inside,
            replaced=replaced,
            exact=tuple([exact[place] for place in places]) if exact else (),
        )
        prefill = predicted(request, ranking, context, best)
        if tokens is not None and self.token_hits is not None:
            decision = self.token_hits.pinned(decision, tokens, prefill, now)
        return Choice(decision, chain, depths[best], deepest, size, prefill, context.output, tokens)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """All endpoints, of which the filters leave the candidates."""
        return self._registry.snapshot.endpoints

    def picks_without_model(self) -> bool:
        """Tell whether a request may be placed before its body is seen: if there is one model to choose from."""
        snapshot = self._registry.snapshot
        return snapshot.sole_model is not None or not snapshot.models

    def known(self, model: str | None) -> str | None:
        """Return the name of a model that is known here, the only one for a request without; None for a stranger's."""
        return self._registry.snapshot.known(model)

    def _context(
        self,
        request: InferenceRequest,
        chain: Sequence[BlockHash],
        deepest: int,
        hits: Sequence[int],
        candidates: Candidates,
        expected: Expectation,
        now: float,
        generator: Generator,
    ) -> Context:
        self._turn += 1
        siblings, lasting = self._ledger.siblings.of(chain[deepest - 1]) if deepest else (0, 0)
        return Context(
            now=now,
            generator=generator,
            loads=self._ledger.loads_of(candidates.slots),
            hits=hits,
            output=expected.output_within(request.output_tokens) if request.operation in GENERATING else 0.0,
            residence=expected.residence,
            turn=self._turn,
            rates=self._rates.rates(candidates, now),
            attention=self._rates.attention(candidates[0].pool),
            chain=chain,
            siblings=siblings,
            lasting=lasting,
            knowledge=self.knowledge,
        )

    def _held(self, request: InferenceRequest, candidates: Candidates) -> tuple[Sequence[BlockHash], list[int]]:
        """Return the prompt's chain, and how many of its leading blocks the index believes each candidate to hold."""
        if request.unhashed or request.operation in NEARLY_FREE:
            return [], [0] * len(candidates)
        chain = self._hasher.chain(request, self._registry.snapshot.sole_model)
        return chain, self._index.depths(chain, candidates.slots) if chain else [0] * len(candidates)

    def _cached(
        self,
        depths: list[int],
        deepest: int,
        size: PromptSize,
        tokens: TokenPrompt | None,
        slots: Sequence[int],
        now: float,
    ) -> tuple[list[int], tuple[bool, ...]]:
        """Return the tokens that each candidate holds, and for which of them an engine's reports say so."""
        hits = depths
        if deepest:
            by_depth, covered, most, scale = {}, self._hasher.tokens, size.tokens, size.scale
            for depth in set(depths):
                hit = int(covered(depth) * scale)
                by_depth[depth] = min(most, hit)
            hits = [by_depth[depth] for depth in depths]
        if tokens is None or self.token_hits is None:
            return hits, ()
        return self.token_hits.correct(hits, tokens, slots, now)

    def _rank(
        self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context
    ) -> tuple[str, str, Ranking]:
        """Return the strategy that ranked, the one that failed before it, if any, and the ranking."""
        name, strategy = self.strategies.get(candidates[0].pool, self._spare)
        if self.model_strategies:
            model = request.model or self._registry.snapshot.sole_model or ""
            name, strategy = self.model_strategies.get(model, (name, strategy))
        try:
            return name, "", checked(strategy.rank(request, candidates, context), len(candidates))
        except UNSTOPPABLE:
            raise
        except BaseException as error:  # noqa: BLE001  a third party must neither fail the request nor end the server
            self._observer.strategy_failed(name, error)
        spare, strategy = self._spare
        return spare, name, strategy.rank(request, candidates, context)

    def _best(
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
            tied = position_of(candidates, self.responses.address(request.previous_response, context.now))
            if tied is not None:
                return tied, "previous_response"
        if ranking.favourite is not None:
            return ranking.favourite, ranking.reason
        lowest = min(costs)
        best = costs.index(lowest)
        if costs.count(lowest) == 1:
            return best, reason_of(ranking, context.hits[best])
        if request.session:
            tied = position_of(candidates, context.knowledge.tied(request, context.now))
            if tied is not None and costs[tied] == lowest:
                return tied, "session"
        return drawn(fewest(costs, lowest, in_flight), candidates, context), "tie"
