"""Counts what happens to requests; the collector reads the counts when they are scraped."""

# ruff: noqa: ARG002  # the observer protocol names arguments that a counter has no use for

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.core.filters import is_unseen
from ext_proc.core.model import Ending, IndexMode, Prediction
from ext_proc.core.observer import NoObserver
from ext_proc.ops import families
from ext_proc.ops.tallies import OTHER, ErrorShare, Histogram, ModelLabels, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from ext_proc.core.errors import Refusal
    from ext_proc.core.model import Decision, Endpoint, FilterReport, InferenceRequest, Outcome, Usage
    from ext_proc.ops.families import Family

MOST_WAITING = 32
"""Decisions, and ends, that may wait to be counted."""

MOST_REASONS = 200
"""Pairs of strategy and reason that are counted by themselves."""


class Metrics(NoObserver):
    """An observer that counts.

    What comes with each request is counted when some have gathered, or when `catch_up` is called before counts are
    read: by the dozen they take half the time, since the processor has code and data at hand then.

    `served` returns the models that some endpoint serves; only they become labels.
    """

    def __init__(self, served: Callable[[], frozenset[str]]) -> None:
        self.tallies: dict[Family, Tally] = {f: Tally() for f in families.FAMILIES if f.kind == "counter"}
        self.decision_seconds = Histogram(families.DECISION_BUCKETS)
        self.durations: dict[str, Histogram] = {}
        self.first_bytes: dict[str, Histogram] = {}
        self.first_tokens: dict[str, Histogram] = {}
        self.prediction_errors: dict[tuple[str, str], ErrorShare] = {}
        self._rejected: set[str] = set()
        self._made: list[tuple[Decision, float]] = []
        self._ended: list[tuple[Decision, Outcome]] = []
        self.models = ModelLabels(served)
        self.waits: dict[str, Histogram] = {}
        # Looked up once, because each look-up hashes a whole family.
        self._requests = self.tallies[families.REQUESTS]
        self._decisions = self.tallies[families.DECISIONS]
        self._unhashed = self.tallies[families.UNHASHED]
        self._attempts = self.tallies[families.ATTEMPTS]
        self._prompt_tokens = self.tallies[families.PROMPT_TOKENS]
        self._completion_tokens = self.tallies[families.COMPLETION_TOKENS]
        self._predicted = self.tallies[families.CACHED_PREDICTED]
        self._actual = self.tallies[families.CACHED_ACTUAL]
        self._compared = self.tallies[families.PREDICTIONS]
        self._exact = self.tallies[families.PREDICTIONS_EXACT]
        self._token_lookups = self.tallies[families.TOKEN_LOOKUPS]
        self._entries = self.tallies[families.ACCESS_LOG_ENTRIES]
        self._probes = self.tallies[families.PROBES]
        self._scrapes = self.tallies[families.SCRAPES]
        self._missing = self.tallies[families.SCRAPE_MISSING]

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count the decision and the time it took, later."""
        self._made.append((decision, seconds))
        if len(self._made) >= MOST_WAITING:
            self.catch_up()

    def catch_up(self) -> None:
        """Count what waits to be counted."""
        made, self._made = self._made, []
        for decision, seconds in made:
            self._count_decision(decision, seconds)
        ended, self._ended = self._ended, []
        for decision, outcome in ended:
            self._count_end(decision, outcome)

    def _count_decision(self, decision: Decision, seconds: float) -> None:
        counts, labels = self._decisions.counts, (decision.strategy, decision.reason)
        if labels not in counts and len(counts) >= MOST_REASONS:  # strategies of strangers make them
            labels = (decision.strategy, OTHER)
        counts[labels] += 1
        self.decision_seconds.observe(seconds)
        request = decision.request
        if request.unhashed is not None:
            self._unhashed.counts[(request.unhashed,)] += 1
        if request.model is None and is_unseen(request):
            self.tallies[families.MODELS_UNSEEN].add(())

    def refused(self, request: InferenceRequest, refusal: Refusal, filters: tuple[FilterReport, ...]) -> None:
        """Count the refusal by its reason."""
        self.tallies[families.REFUSALS].add((refusal.reason,))

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """Count how a wait for a place ended, and how long it was."""
        self.tallies[families.QUEUED].add((pool, result))
        _histogram(self.waits, pool).observe(seconds)

    def passed(self, reason: str) -> None:
        """Count the request by why it was passed."""
        self.tallies[families.PASSED].add((reason,))

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        """Count the failure by its reason."""
        self.tallies[families.EXCHANGE_FAILURES].add((reason,))

    def first_token(self, decision: Decision, seconds: float) -> None:
        """Count the time to the first token."""
        _histogram(self.first_tokens, self.models.label(decision.request.model)).observe(seconds)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Count the request by its ending, its times and its tokens, later."""
        self._ended.append((decision, outcome))
        if len(self._ended) >= MOST_WAITING:
            self.catch_up()

    def _count_end(self, decision: Decision, outcome: Outcome) -> None:
        request = decision.request
        model = self.models.label(request.model)
        self._requests.counts[model, request.operation, outcome.ending] += 1
        if outcome.ending is Ending.LOST:
            self.tallies[families.LEASES_EXPIRED].add(())
            return
        self._attempts.counts[()] += outcome.attempts
        _histogram(self.durations, model).observe(outcome.duration)
        if outcome.first_byte is not None:
            _histogram(self.first_bytes, model).observe(outcome.first_byte)
        if outcome.served is not None:
            self._served(decision, outcome, outcome.served)

    def strategy_failed(self, strategy: str, error: BaseException) -> None:
        """Count the failure by strategy."""
        self.tallies[families.STRATEGY_FAILURES].add((strategy,))

    def health_changed(self, endpoint: Endpoint, state: str, evidence: str, reason: str = "") -> None:
        """Count the change by the state entered, and an ejection by its reason."""
        self.tallies[families.HEALTH_CHANGES].add((state,))
        if reason:
            self.tallies[families.EJECTIONS].add((reason,))

    def probed(self, result: str) -> None:
        """Count an active probe by what it found."""
        self._probes.counts[(result,)] += 1

    def wake_called(self, result: str) -> None:
        """Count a call that was to wake an engine by what came of it."""
        self.tallies[families.WAKE_CALLS].add((result,))

    @property
    def reload_success(self) -> bool:
        """Whether the latest content of every watched file was usable."""
        return not self._rejected

    def config_reloaded(self, source: str = "config", *, applied: bool) -> None:
        """Count a change of a watched file, the configuration or a list of endpoints."""
        self.tallies[families.RELOADS].add(("applied" if applied else "rejected",))
        if applied:
            self._rejected.discard(source)
        else:
            self._rejected.add(source)

    def line_held_back(self, event: str) -> None:
        """Count a log line that was not written, since there were too many of its kind."""
        self.tallies[families.LOG_LINES_SUPPRESSED].add((event,))

    def access_log_entry(self, result: str) -> None:
        """Count an entry of Envoy's access log by what became of it."""
        self._entries.counts[(result,)] += 1

    def scraped(self, result: str, engine: str, missing: tuple[str, ...]) -> None:
        """Count a reading of an engine's metrics, and what was missing on the page."""
        self._scrapes.counts[(result,)] += 1
        for signal in missing:
            self._missing.counts[engine, signal] += 1

    def token_lookup(self, pool: str, result: str) -> None:
        """Count a look for the exact tokens of a request by what became of it."""
        self._token_lookups.counts[pool, result] += 1

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """Count a message with KV events by what became of it, and the events of it that had no effect."""
        self.tallies[families.KV_MESSAGES].add((result,))
        for reason in skipped:
            self.tallies[families.KV_SKIPPED].add((reason,))

    def kv_recovery(self, result: str) -> None:
        """Count a gap in KV events by what became of it."""
        self.tallies[families.KV_RECOVERIES].add((result,))

    def forget_endpoints(self, known: AbstractSet[str]) -> None:
        """Drop the counts of endpoints that are gone, so that churn does not pile up series."""
        self.catch_up()
        by_endpoint = (self._prompt_tokens, self._completion_tokens, self._predicted, self._actual)
        for tally in (*by_endpoint, self._compared, self._exact):
            for labels in [labels for labels in tally.counts if labels[0] not in known]:
                del tally.counts[labels]
        for key in [key for key in self.prediction_errors if key[0] not in known]:
            del self.prediction_errors[key]

    def _served(self, decision: Decision, outcome: Outcome, served: str) -> None:
        if served != decision.endpoints[0].address:
            self.tallies[families.FALLBACKS].add(())
        endpoint = (served,)
        usage = outcome.usage
        if usage.prompt_tokens:
            self._prompt_tokens.counts[endpoint] += usage.prompt_tokens
        if usage.completion_tokens:
            self._completion_tokens.counts[endpoint] += usage.completion_tokens
        if usage.cached_tokens is not None and (decision.chain_length or decision.exact):
            self._compare(decision, usage, served)

    def _compare(self, decision: Decision, usage: Usage, served: str) -> None:
        """Set predicted against true cached tokens; an endpoint that was not among those named was predicted none."""
        cached = usage.cached_tokens or 0
        made = decision.prediction(served) or Prediction(0, IndexMode.TEXT)
        key = served, made.mode
        self._actual.counts[key] += cached
        self._predicted.counts[key] += made.tokens
        self._compared.counts[key] += 1
        self._exact.counts[key] += made.tokens == cached
        length = usage.prompt_tokens or decision.request.prompt_tokens
        if length > 0:
            errors = self.prediction_errors.get(key)
            if errors is None:
                errors = self.prediction_errors[key] = ErrorShare()
            errors.add(made.tokens - cached, length)


def _histogram(histograms: dict[str, Histogram], label: str) -> Histogram:
    found = histograms.get(label)
    if found is None:
        found = histograms[label] = Histogram(families.LATENCY_BUCKETS)
    return found
