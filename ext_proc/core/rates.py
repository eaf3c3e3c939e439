"""How fast each endpoint prefills (R), learnt from what comes back.

Two sources tell it. The better one that an endpoint has is used alone, so that nothing counts twice:

1. First tokens. Engines serve first come, first served, so between two first tokens lies the service of one prompt:
   `svc = f - max(d, f_last)` for a prompt dispatched at d with its first token at f; R is work over service, both
   summed with forgetting. Where requests that tell no first token were sent in between, both are those of all of them.
2. Sums of the time to first token in the engine's metrics, between two scrapes, against what was predicted for as many
   requests: they move the rate a little towards where both would be equal.

An engine of several data-parallel ranks has the rate of one of them: between two first tokens lie then the seconds that
ranks were at work, added up.

A rate within the dead band around the median of its peers counts as the median: noise in R would unbalance equal
engines. Whole answers (duration less what all tokens but the first took) are no source: what decoding takes varies by
more than a first token takes, and in simulation a rate learnt from them was worse than a low guess.
"""

from __future__ import annotations

import copy
import enum
import statistics
from collections.abc import Sequence
from itertools import islice

import msgspec

from ext_proc.core.attention import START, AttentionLearner
from ext_proc.core.candidates import Candidates
from ext_proc.core.load import Service
from ext_proc.core.model import Endpoint
from ext_proc.core.prefill import Prefill

_MEMORY = 0.98
_ENOUGH_SECONDS = 0.5
_ENOUGH_TOKENS = 20_000.0
_SUM_MEMORY = 0.9
_LAG = 0.01
_CORRECTION = 0.1
_LARGEST_ERROR = 8.0
"""A rate that is far off is mended soon; with 2, a start at a quarter of the true rate took most of a minute."""

_SLOWEST, _FASTEST = 1.0, 1e8
_PATIENCE = 60.0
_FRESH = 0.25
_REMEMBERED = 4096
_KEPT = 256


class RateSource(enum.IntEnum):
    """Where an endpoint's rate is learnt from, best first."""

    FIRST_TOKEN = 0
    SCRAPE = 1


_BANDS = {RateSource.FIRST_TOKEN: 1.4, RateSource.SCRAPE: 2.0}
"""How far a rate may be from the median without being believed: wider where errors of the index look like slowness."""


class Scrape(msgspec.Struct, frozen=True, gc=False):
    """What a scrape of an engine's metrics adds to the one before.

    Attributes:
        ttft_sum: seconds to the first token, summed over the requests that got theirs since.
        ttft_count: how many these are.
        waiting: requests not admitted yet; None where the engine does not say.
        running: requests admitted; None where the engine does not say.
        seconds: how long ago the one before was.
    """

    ttft_sum: float = 0.0
    ttft_count: int = 0
    waiting: int | None = None
    running: int | None = None
    seconds: float = 0.0


class _Speed(msgspec.Struct, gc=False):
    """What is known of one endpoint; `work` in effective tokens, `service` in seconds, `rate` in tokens/s."""

    rate: float = 0.0
    source: RateSource = RateSource.SCRAPE
    heard_at: float = 0.0
    work: float = 0.0
    service: float = 0.0
    predicted: float = 0.0
    actual: float = 0.0


class RateLearner:
    """Prefill rates by endpoint slot."""

    def __init__(self) -> None:
        self._speeds: dict[int, _Speed] = {}
        self._attention: dict[str, AttentionLearner] = {}
        self._predictions: dict[int, dict[str, tuple[float, float]]] = {}
        self._views: dict[int, tuple[Candidates, float, Sequence[float]]] = {}

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self._speeds.pop(slot, None)
        self._predictions.pop(slot, None)
        self._views.clear()
        for learner in self._attention.values():
            learner.slots.discard(slot)
        self._attention = {pool: learner for pool, learner in self._attention.items() if learner.slots}

    def rate(self, slot: int) -> float | None:
        """Return the rate learnt for a slot itself, in tokens/s, before it is held against its peers'."""
        speed = self._speeds.get(slot)
        return speed.rate or None if speed else None

    def source(self, slot: int) -> RateSource | None:
        """Return where a slot's rate comes from; None before anything is learnt."""
        speed = self._speeds.get(slot)
        return speed.source if speed and speed.rate else None

    def rates(self, candidates: Candidates, now: float) -> Sequence[float]:
        """Return a rate in tokens/s for each candidate, 0 where nothing is known; empty if nothing is known of any.

        The view is up to a quarter of a second old, so that a decision does not sort hundreds of rates.
        """
        view = self._views.get(id(candidates))
        if view is not None and view[0] is candidates and 0 <= now - view[1] < _FRESH:
            return view[2]
        made = self._banded(candidates)
        if len(self._views) >= _KEPT:
            self._views.clear()
        self._views[id(candidates)] = (candidates, now, made)
        return made

    def twin(self) -> RateLearner:
        """Return a learner that knows the same; what is looked up there makes no view here."""
        twin = copy.copy(self)
        twin._views = self._views.copy()  # noqa: SLF001  it is one of us
        return twin

    def assume(self, slot: int, rate: float, source: RateSource) -> None:
        """Take a rate, in tokens/s, for learnt."""
        self._speeds[slot] = _Speed(rate=rate, source=source)

    def assume_attention(self, pool: str, length: float) -> None:
        """Take an attention length (A), in tokens, for learnt."""
        self._attention[pool] = AttentionLearner(length=length, learnt=True)

    def dispatched(self, slot: int, decision_id: str, prefill: Prefill) -> None:
        """Note a dispatch with what was predicted of it; only an engine whose metrics are read has use for that."""
        waiting = self._predictions.get(slot)
        if waiting is not None and prefill.seconds:
            waiting[decision_id] = (prefill.wait + prefill.seconds, prefill.rate)
            if len(waiting) > _REMEMBERED:
                del waiting[next(iter(waiting))]

    def cancelled(self, slot: int, decision_id: str) -> None:
        """Forget a dispatch that got no first token there: the engine does not count it either."""
        waiting = self._predictions.get(slot)
        if waiting:
            waiting.pop(decision_id, None)

    def restarted(self, slot: int) -> None:
        """Forget what was dispatched to an engine that began anew."""
        waiting = self._predictions.get(slot)
        if waiting:
            waiting.clear()

    def attention(self, pool: str) -> float:
        """Return the attention length (A) learnt for the engines of a pool, in tokens; 0 before there is one."""
        learner = self._attention.get(pool)
        return learner.length if learner and learner.learnt else 0.0

    def first_token(self, endpoint: Endpoint, now: float, service: Service, prompt: Prefill) -> None:
        """Learn from a first token.

        Args:
            endpoint: who sent it.
            now: when it came (f), monotonic seconds.
            service: what it did since the one before.
            prompt: what was prefilled for this one.
        """
        speed = self._heard(endpoint.slot, RateSource.FIRST_TOKEN, now)
        if speed.rate and service.own is not None:
            learner = self._attention.get(endpoint.pool)
            if learner is None:
                learner = self._attention[endpoint.pool] = AttentionLearner(prompt.attention or START)
            learner.slots.add(endpoint.slot)
            learner.note(prompt.tokens, prompt.uncached, service.own * speed.rate)
        speed.work = _MEMORY * speed.work + service.work
        speed.service = _MEMORY * speed.service + service.seconds
        enough = speed.service > _ENOUGH_SECONDS or speed.work > _ENOUGH_TOKENS
        if enough and speed.service > 0:
            speed.rate = min(max(speed.work / speed.service, _SLOWEST), _FASTEST)

    def scraped(self, slot: int, ttft_sum: float, ttft_count: int, now: float) -> None:
        """Learn from what a scrape adds to an engine's sum and count of times to first token, in seconds."""
        waiting = self._predictions.get(slot)
        if waiting is None:  # from now on predictions are worth keeping
            self._predictions[slot] = {}
        if not waiting or ttft_count <= 0 or ttft_sum < 0:
            return
        taken = [waiting.pop(each) for each in list(islice(waiting, ttft_count))]
        own = len(taken)
        predicted = sum(seconds for seconds, _ in taken)
        # Requests of others count in the engine's sum too; ours are taken to have waited as long as theirs.
        actual, rate = ttft_sum * own / ttft_count, taken[-1][1]
        speed = self._heard(slot, RateSource.SCRAPE, now)
        if speed.source is not RateSource.SCRAPE or rate <= 0:
            return
        speed.predicted = _SUM_MEMORY * speed.predicted + predicted + _LAG * own
        speed.actual = _SUM_MEMORY * speed.actual + actual
        _nudge(speed, rate, speed.predicted, speed.actual, _CORRECTION)

    def _heard(self, slot: int, source: RateSource, now: float) -> _Speed:
        """Return a slot's state, turned to this source if no better one was heard of lately."""
        speed = self._speeds.get(slot)
        if speed is None:
            speed = self._speeds[slot] = _Speed(source=source)
        if source < speed.source or (source > speed.source and now - speed.heard_at > _PATIENCE):
            speed.source = source
            speed.work = speed.service = speed.predicted = speed.actual = 0.0
        if speed.source is source:
            speed.heard_at = now
        return speed

    def _banded(self, candidates: Candidates) -> Sequence[float]:
        speeds = [self._speeds.get(slot) for slot in candidates.slots]
        known = [speed.rate for speed in speeds if speed is not None and speed.rate]
        stated = candidates.prefill_rates
        if not known:
            return [rate or 0.0 for rate in stated] if stated else ()
        median = statistics.median(known)
        configured = stated or (None,) * len(candidates)
        return [_rate(speed, rate, median) for speed, rate in zip(speeds, configured, strict=True)]


def _nudge(speed: _Speed, rate: float, predicted: float, actual: float, share: float) -> None:
    """Move a rate a little towards where what was predicted would be what came."""
    error = min(max(predicted / actual if actual > 0 else _LARGEST_ERROR, 1 / _LARGEST_ERROR), _LARGEST_ERROR)
    step = error**share
    speed.rate = min(max((speed.rate or rate) * step, _SLOWEST), _FASTEST)
    speed.predicted /= step  # what was predicted at the old rate would be less at the new one


def _rate(speed: _Speed | None, configured: float | None, median: float) -> float:
    if speed is None or not speed.rate:
        return configured or median
    band = _BANDS[speed.source]
    return median if median / band < speed.rate < median * band else speed.rate
