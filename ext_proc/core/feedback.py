"""What became of decisions: one outcome settles the lease, teaches health, index and ledger, and is observed once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ext_proc.core.admission import Admission
from ext_proc.core.attempts import NO_ATTEMPTS, Attempt, Blame
from ext_proc.core.expectations import Expectations
from ext_proc.core.health import HealthMonitor
from ext_proc.core.ledger import Lease, Ledger
from ext_proc.core.model import GENERATING, ILLNESS, Ending, Endpoint, IndexMode, InferenceRequest, Outcome
from ext_proc.core.observer import Observer
from ext_proc.core.patience import Patience
from ext_proc.core.picker import EndpointPicker
from ext_proc.core.pool import Registry
from ext_proc.core.prefix_index import PrefixIndex
from ext_proc.core.rates import RateLearner, RateSource, Scrape
from ext_proc.core.strangers import Strangers
from ext_proc.core.stream_outcomes import StreamOutcomes

_LEAST_COUNTED = 64
"""Estimated tokens below which the chat template, which no estimate knows, would count for more than the text."""

_TOLERATED_ERROR = 0.05
"""Share of a prompt that may be missing without meaning that the engine lost something: estimates are no better."""

_OK = Ending.OK  # looked up once, since each look at an enumeration costs as much as a call

_NOTHING_CACHED = frozenset(
    {Ending.CONNECT_FAILURE, Ending.RESET, Ending.SERVER_ERROR, Ending.OVERLOADED, Ending.CLIENT_ERROR, Ending.LOCAL}
)
"""Endings after which the engine cannot be believed to hold the prompt."""


class Feedback:
    """Joins outcomes to decisions by decision id; each lease is settled once, by its outcome or by its expiry."""

    def __init__(
        self,
        *,
        registry: Registry,
        ledger: Ledger,
        index: PrefixIndex,
        health: HealthMonitor,
        rates: RateLearner,
        expectations: Expectations,
        picker: EndpointPicker,
        observer: Observer,
        admission: Admission | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._index = index
        self._health = health
        self._rates = rates
        self._expectations = expectations
        self._picker = picker
        self._observer = observer
        self._blame = Blame(self._find, health, lambda: picker.knowledge.reputations)
        self._admission = admission
        self._patience = Patience()
        self.streams = StreamOutcomes()
        self.strangers = strangers or Strangers()

    def is_foreign(self, decision_id: str) -> bool:
        """Tell whether another kvpicker of the same Envoy made a decision."""
        return not decision_id.startswith(f"{self._picker.instance}-")

    def renew(self, decision_id: str, now: float, served: str | None = None) -> bool:
        """Note that Envoy still runs a request, at `served` where that is known; False if its decision is unknown."""
        if not self._ledger.renew(decision_id, now):
            return False
        self._follow(self._ledger.get(decision_id), served, now)
        return True

    def hold(self, decision_id: str, *, held: bool = True) -> None:
        """Note that the stream on which the answer will pass is open, or that it is not any more."""
        self._ledger.hold(decision_id, held=held)

    def log_tells(self, decision_id: str, now: float) -> None:
        """Note that an access log speaks of a decision; it will of others whose own streams show the answer too."""
        if decision_id in self.streams or self._ledger.is_held(decision_id):
            self.streams.log_heard(now)

    def touch(self, decision_id: str, now: float) -> None:
        """Note that the answer to a request passes."""
        self._ledger.touch(decision_id, now)

    def answering(self, decision_id: str, served: str, now: float, *, succeeds: bool = True) -> None:
        """Note which endpoint answers: work and prefix of a request that went elsewhere than decided go there too.

        Args:
            decision_id: the decision by which the request was sent.
            served: address of the endpoint.
            now: monotonic seconds.
            succeeds: whether the answer is a good one, as far as is known.
        """
        lease = self._ledger.get(decision_id)
        if lease is None or served == lease.address == lease.decision.chosen.address:
            return
        self._follow(lease, served, now)
        endpoint, learnt, chosen = self._find(served), lease.learnt, lease.decision.chosen
        if endpoint is None or not succeeds or lease.relearnt or served == chosen.address or not learnt.chain:
            return
        lease.relearnt = True
        if self._is_current(chosen):
            self._index.forget(chosen.slot, learnt.chain, learnt.depth, learnt.stamp)
        self._index.learn(endpoint.slot, learnt.chain)

    def first_token(self, decision_id: str, now: float, served: str | None = None) -> None:
        """Learn from the first token of a streamed answer; an unknown decision and a second token say nothing.

        Args:
            decision_id: the decision by which the request was sent.
            now: monotonic seconds.
            served: address of the endpoint that answers, which is another than the chosen one after a retry; None
                where that is not known.
        """
        if served is not None:
            self.answering(decision_id, served, now)
        noted = self._ledger.first_token(decision_id, now, served)
        if noted is None:
            return
        lease, service = noted
        decision, chosen = lease.decision, lease.decision.chosen
        self._observer.first_token(decision, lease.first_token or 0.0)
        if not lease.prefill.work or service is None or not self._is_current(chosen):
            return
        if not self._health.excuses(chosen.slot, decision.decided_at):
            self._rates.first_token(chosen, now, service, lease.prefill)

    def scraped(self, endpoint: Endpoint, scrape: Scrape, now: float) -> None:
        """Learn from an engine's metrics how fast it is and, where its first tokens are not heard of, its queue."""
        if not self._is_current(endpoint):
            return
        slot = endpoint.slot
        if self._health.excuses(slot, now - scrape.seconds):  # first tokens may be among them that a sleep held up
            self._rates.restarted(slot)
        else:
            self._rates.scraped(slot, scrape.ttft_sum, scrape.ttft_count, now)
        if scrape.waiting is not None and self._rates.source(slot) is not RateSource.FIRST_TOKEN:
            self._ledger.queue(slot, scrape.waiting, scrape.running or 0, now)

    def restarted(self, endpoint: Endpoint) -> None:
        """Note that an engine began anew: it holds no prefix any more."""
        if self._is_current(endpoint):
            self._index.clear(endpoint.slot)
            self._rates.restarted(endpoint.slot)
            if self._picker.token_hits is not None:
                self._picker.token_hits.remove(endpoint.slot)

    def failed(self, attempt: Attempt, now: float) -> None:
        """Note an attempt that failed, though its request may go on elsewhere for long."""
        lease = self._ledger.find(attempt.request_id) if attempt.request_id and not attempt.noted else None
        self._blame.note(attempt, now)
        if lease is None or not attempt.noted:
            return
        if attempt.address not in lease.blamed:
            lease.blamed = (*lease.blamed, attempt.address)
        if attempt.is_void and attempt.address == lease.address:
            addresses = [endpoint.address for endpoint in lease.decision.endpoints]
            place = addresses.index(attempt.address) + 1 if attempt.address in addresses else len(addresses)
            self._follow(lease, addresses[place] if place < len(addresses) else None, now)

    def settle(self, outcome: Outcome, now: float, attempts: Sequence[Attempt] = NO_ATTEMPTS) -> bool:
        """Learn from an outcome; False if its decision is unknown or settled already.

        Args:
            outcome: of a request.
            now: monotonic seconds.
            attempts: those of its attempts that are known to have failed, in their order.
        """
        is_good = outcome.ending is _OK
        lease = self._ledger.end(outcome.decision_id, now, answered_by=outcome.served if is_good else None)
        if lease is None:
            return False
        if lease.first_token is not None:
            outcome = msgspec.structs.replace(outcome, first_token=lease.first_token)
        decision, served = lease.decision, self._served(lease, outcome)
        request, is_chosen = decision.request, served is decision.endpoints[0]
        generated = _generated(request, outcome) if request.operation in GENERATING else None
        blamed = (outcome.attempts > 1 or attempts or lease.blamed) and self._blame.settle(
            decision, outcome, served, attempts, now, lease.blamed
        )
        current = served if served is not None and self._is_current(served) else None
        is_excused = current is not None and self._health.excuses(current.slot, decision.decided_at)
        if current is not None and not blamed and not is_excused:
            self._note_conduct(current, lease, outcome, generated, now)
        if self._picker.token_hits is not None:
            self._picker.token_hits.ended(decision.id, now, computed=is_chosen and not _is_useless(outcome))
        if not is_good or not is_chosen:
            self._correct_index(lease, outcome, served)
            self._rates.cancelled(decision.endpoints[0].slot, decision.id)
        is_kept = is_good or not (is_excused or _is_useless(outcome))  # what was cut by a sleep is gone with the cache
        if current is not None and lease.learnt.chain and is_kept:
            model = self._registry.snapshot.known(request.model)
            answer = self._expectations.of(model).answer(generated, request.output_tokens)
            self._index.ended(current.slot, lease.learnt.chain, answer)
        if is_good:
            if request.operation in GENERATING and not is_excused:
                self._learn(lease, outcome, current, generated)
            if outcome.response_id and served is not None:
                self._picker.responses.tie(outcome.response_id, served.address, now)
        self._observer.finished(decision, outcome)
        self._freed(now)
        return True

    def made(self, outcome: Outcome, now: float) -> None:
        """Note who made a response that another kvpicker of the same Envoy placed, or this one before a restart."""
        if outcome.response_id and outcome.served is not None and outcome.ending is Ending.OK:
            self._picker.responses.tie(outcome.response_id, outcome.served, now)

    def settle_stream(self, outcome: Outcome, now: float) -> bool:
        """Learn from an outcome that the decision's own stream showed; an access log may tell of it again."""
        self._ledger.hold(outcome.decision_id, held=False)
        lease = self._ledger.get(outcome.decision_id)
        if lease is None or not self.settle(outcome, now):
            return False
        if outcome.attempts > 1 or outcome.ending in ILLNESS:
            self._blame.told(lease.decision, outcome, lease.blamed)
        self.streams.note(outcome.decision_id)
        return True

    def left(self, request_id: str, now: float) -> bool:
        """Settle the decision of a client that left before Envoy had it; False if there is none to be found."""
        lease = self._ledger.find(request_id)
        if lease is None:
            return False
        return self.settle(Outcome(decision_id=lease.decision.id, ending=Ending.CLIENT_GONE), now)

    def expire(self, now: float) -> int:
        """Settle the leases whose log entry is overdue; return how many there were."""
        self.strangers.expire(now)
        overdue = self._ledger.expire(now, self._expectations.longest_residence)
        for lease in overdue:
            lost = Outcome(
                decision_id=lease.decision.id, ending=Ending.LOST, served=lease.served, first_token=lease.first_token
            )
            if self._picker.token_hits is not None:
                self._picker.token_hits.ended(lease.decision.id, now, computed=True)
            self._observer.finished(lease.decision, lost)
        self._freed(now)
        return len(overdue)

    def _follow(self, lease: Lease | None, served: str | None, now: float) -> None:
        """Count a request where it runs, if a retry took it elsewhere."""
        if lease is None or served is None or served == lease.address:
            return
        endpoint = self._find(served)
        if endpoint is not None:
            self._ledger.move(lease.decision.id, served, endpoint.slot, now)

    def _freed(self, now: float) -> None:
        """Let whoever waits for a place try; last, so that all that was learnt counts."""
        if self._admission is not None and len(self._admission):
            self._admission.dispatch(now)

    def _learn(self, lease: Lease, outcome: Outcome, served: Endpoint | None, generated: int | None) -> None:
        """Learn from a good answer what to expect of the next ones."""
        request, learnt, tokens = lease.decision.request, lease.learnt, outcome.usage.prompt_tokens
        expected = self._expectations.known(self._registry.snapshot.known(request.model))
        expected.learn(generated, max(outcome.duration - request.waited, 0.0))
        if not tokens or not learnt.chain or request.truncated:
            return
        if learnt.estimated >= _LEAST_COUNTED:
            expected.learn_tokens(learnt.estimated, tokens)
            if served is not None:
                self._index.scaled(served.slot, expected.scale)
        if served is not None and outcome.usage.cached_tokens is not None:
            self._set_right(lease, served, outcome.usage.cached_tokens, tokens)

    def _set_right(self, lease: Lease, served: Endpoint, cached: int, tokens: int) -> None:
        """Let our own history learn from the cached tokens that an engine reports, where it was what predicted."""
        decision, learnt = lease.decision, lease.learnt
        made = decision.prediction(served.address)
        if made is None or made.mode is not IndexMode.TEXT:
            return
        scale = tokens / max(decision.request.prompt_tokens, 1)
        predicted = made.tokens * scale
        slack = self._next_block(lease, served) * tokens / max(learnt.estimated or decision.request.prompt_tokens, 1)
        self._index.correct(served.slot, predicted, cached, tokens, slack)
        if served is not decision.endpoints[0]:
            return
        if learnt.expired and cached - predicted > slack:
            self._index.found(served.slot, learnt.expired, learnt.stamp)
        elif learnt.depth and predicted - cached > _TOLERATED_ERROR * tokens:
            self._index.missed(served.slot, learnt.used, learnt.stamp)

    def _next_block(self, lease: Lease, served: Endpoint) -> int:
        """Return the tokens of the block behind those that the chosen endpoint held; 0 for another one's."""
        if served is not lease.decision.endpoints[0]:
            return 0
        covered, depth = self._picker.knowledge.tokens, lease.learnt.depth
        return covered(depth + 1) - covered(depth)

    def _note_conduct(
        self, served: Endpoint, lease: Lease, outcome: Outcome, generated: int | None, now: float
    ) -> None:
        ending, knowledge, model = outcome.ending, self._picker.knowledge, lease.decision.request.model
        if outcome.first_byte is not None:
            self._patience.began(served.pool, outcome.first_byte)
        elif ending is Ending.CLIENT_GONE and self._patience.is_exhausted(served.pool, outcome.duration):
            ending = Ending.TIMEOUT
        self._health.note(served, ending, now, lease.decision.decided_at)
        seconds = max(outcome.duration - lease.decision.request.waited, 0.0)
        knowledge.reputations.note(served, ending, now, seconds=seconds, tokens=generated)
        if ending is _OK and model in served.models:
            knowledge.served.note(served, model)

    def _correct_index(self, lease: Lease, outcome: Outcome, served: Endpoint | None) -> None:
        learnt = lease.learnt
        if not learnt.chain:
            return
        chosen = lease.decision.chosen
        if (served is not chosen or _is_useless(outcome)) and self._is_current(chosen):
            self._index.forget(chosen.slot, learnt.chain, learnt.depth, learnt.stamp)

    def _served(self, lease: Lease, outcome: Outcome) -> Endpoint | None:
        """Return the endpoint of the last attempt, which may be one that Envoy chose by itself; None for a stranger."""
        chosen = lease.decision.endpoints[0]
        if outcome.served == chosen.address:
            return chosen
        if outcome.served is None:
            return _tried(lease, outcome)[1]
        named = (endpoint for endpoint in lease.decision.endpoints if endpoint.address == outcome.served)
        return next(named, None) or self._registry.snapshot.by_address.get(outcome.served)

    def _find(self, address: str) -> Endpoint | None:
        return self._registry.snapshot.by_address.get(address)

    def _is_current(self, endpoint: Endpoint) -> bool:
        known = self._registry.snapshot.by_address.get(endpoint.address)
        return known is endpoint or (known is not None and known.generation == endpoint.generation)


def _is_useless(outcome: Outcome) -> bool:
    """Tell whether the engine cannot be believed to have computed the prompt."""
    return outcome.ending is not _OK and (outcome.served is None or outcome.ending in _NOTHING_CACHED)


def _generated(request: InferenceRequest, outcome: Outcome) -> int | None:
    """Return how many tokens were generated; never more than the client allowed."""
    tokens, limit = outcome.usage.completion_tokens, request.output_tokens
    return tokens if tokens is None or limit is None else min(tokens, limit)


def _tried(lease: Lease, outcome: Outcome) -> tuple[Sequence[Endpoint], Endpoint]:
    """Return who was tried in vain, and who at last; with more attempts than names Envoy begins again."""
    endpoints = lease.decision.endpoints
    before = max(outcome.attempts, 1) - 1
    return endpoints[:before], endpoints[before % len(endpoints)]
