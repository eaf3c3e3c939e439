"""What engines say of themselves: the latest signals by endpoint slot, their age, and what happened between two.

A signal that an engine does not give is None, never 0. Signals are believed in full for a while (`fresh`), then fade
linearly until, at three times that age, nothing is left of them; what is missing or faded counts as the mean of what is
known of the others, so that silence is neither a reward nor a punishment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import msgspec

from ext_proc.core.sleepers import SleepLevel

FADES = 3.0
"""Ages are neutral from this many times `fresh` on."""

_SAME_START = 1.0
"""Seconds; start times that differ by less are one start, written with another rounding."""


SLACK_REQUESTS, SLACK_USAGE = 4.0, 0.1
"""Requests, and share of KV memory, by which engines may differ and still be equal."""

_KEPT = 1.0


class Times(msgspec.Struct, frozen=True, gc=False):
    """Durations added up: their sum in seconds and how many there were."""

    sum: float
    count: float

    @property
    def mean(self) -> float | None:
        """Seconds of one; None if there was none."""
        return self.sum / self.count if self.count > 0 else None


class EngineSignals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One reading of an engine; None where it does not say. Engines with several ranks are added up.

    Attributes:
        at: when it was read, monotonic seconds.
        ranks: data-parallel ranks that tell of themselves.
        started: when the process began, seconds of the engine's clock.
        waiting: requests in its queue.
        running: requests in its batch.
        kv_usage: share of KV memory that running requests hold, 0 to 1, the mean over ranks; 0 does not mean that
            nothing is cached.
        kv_tokens: capacity of its KV cache, tokens.
        block_tokens: tokens of one block of it.
        prompt_tokens: prompt tokens since its start.
        queried_tokens: prompt tokens looked up in its prefix cache since its start.
        cached_tokens: prompt tokens found there since its start.
        ttft: times to the first token since its start.
        itl: times between two tokens since its start.
        queue: times in its queue since its start.
        asleep: whether it sleeps; None also where its ranks do not agree.
        sleep_level: how deep, if it does.
    """

    at: float
    ranks: int | None = None
    started: float | None = None
    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prompt_tokens: float | None = None
    queried_tokens: float | None = None
    cached_tokens: float | None = None
    ttft: Times | None = None
    itl: Times | None = None
    queue: Times | None = None
    asleep: bool | None = None
    sleep_level: SleepLevel = SleepLevel.UNKNOWN


class Interval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened at an engine between two readings; None where one of them did not say.

    Attributes:
        seconds: time between the two.
        restarted: the engine began anew in between; nothing else is known then.
        prompt_tokens: prompt tokens it took.
        queried_tokens: those it looked up in its prefix cache.
        cached_tokens: those it found there.
        ttft: first tokens and the times to them.
        itl: further tokens and the times between them.
        queue: times that requests spent in its queue.
    """

    seconds: float
    restarted: bool = False
    prompt_tokens: float | None = None
    queried_tokens: float | None = None
    cached_tokens: float | None = None
    ttft: Times | None = None
    itl: Times | None = None
    queue: Times | None = None


class Signals:
    """The latest signals of each slot.

    Args:
        fresh: seconds for which a reading is believed in full; at three times that age it is gone.
    """

    def __init__(self, fresh: float = 7.0) -> None:
        self.fresh = fresh
        self._latest: dict[int, EngineSignals] = {}
        self._intervals: dict[int, Interval] = {}
        self._differ = False
        self._compared_at = -inf

    def note(self, slot: int, signals: EngineSignals) -> Interval | None:
        """Keep a reading; return what happened since the one before, None if it is the first."""
        before = self._latest.get(slot)
        self._latest[slot] = signals
        if before is None:
            return None
        interval = self._intervals[slot] = _between(before, signals)
        return interval

    def remove(self, slot: int) -> None:
        """Forget a slot, so that its next endpoint inherits nothing."""
        self._latest.pop(slot, None)
        self._intervals.pop(slot, None)

    def of(self, slot: int, now: float) -> EngineSignals | None:
        """Return the latest signals of a slot; None if there are none or nothing is left of them."""
        found = self._latest.get(slot)
        return found if found is not None and self._weight(found, now) > 0.0 else None

    def interval(self, slot: int) -> Interval | None:
        """Return what happened between the latest two readings of a slot; None before the second."""
        return self._intervals.get(slot)

    def block_tokens(self, slot: int) -> int | None:
        """Return the tokens of one block of the KV cache in a slot; None if nothing says so. It does not grow old."""
        found = self._latest.get(slot)
        return None if found is None else found.block_tokens

    def age(self, slot: int, now: float) -> float | None:
        """Return the seconds since the latest reading of a slot, however long ago; None if there is none."""
        found = self._latest.get(slot)
        return None if found is None else max(now - found.at, 0.0)

    def levels(self, slots: Sequence[int], read: Callable[[Any], float | None], now: float) -> list[float] | None:
        """Return one signal of each slot, fit to be compared.

        Args:
            slots: the slots to compare.
            read: picks the signal, such as `lambda signals: signals.kv_usage`.
            now: monotonic seconds.

        Returns:
            One number per slot: what is missing is the mean of what is known, what fades moves towards that mean.
            None if nothing is known of any.
        """
        latest = self._latest.get
        readings = [
            None if (found := latest(slot)) is None else (read(found), self._weight(found, now)) for slot in slots
        ]
        known = [(value, weight) for value, weight in filter(None, readings) if value is not None and weight > 0.0]
        if not known:
            return None
        mean = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
        return [
            mean if reading is None or reading[0] is None else mean + (reading[0] - mean) * reading[1]
            for reading in readings
        ]

    def differ(self, now: float) -> bool:
        """Tell whether some engine has clearly more to do than another; what was found is kept for a second."""
        if not 0.0 <= now - self._compared_at < _KEPT:
            self._compared_at = now
            believed = [signals for signals in self._latest.values() if self._weight(signals, now) > 0.0]
            self._differ = _spread(believed, requests) > SLACK_REQUESTS or _spread(believed, usage) > SLACK_USAGE
        return self._differ

    def _weight(self, signals: EngineSignals, now: float) -> float:
        faded = (now - signals.at - self.fresh) / ((FADES - 1.0) * self.fresh)
        return min(max(1.0 - faded, 0.0), 1.0)


def requests(view: Any) -> float | None:
    """Return the requests that an engine has, in its batch and in its queue; None where it does not say."""
    return None if view.running is None or view.waiting is None else view.running + view.waiting


def usage(view: Any) -> float | None:
    """Return the share of its KV memory that an engine uses; None where it does not say."""
    level: float | None = view.kv_usage
    return level


def _spread(engines: Sequence[EngineSignals], read: Callable[[Any], float | None]) -> float:
    known = [level for engine in engines if (level := read(engine)) is not None]
    return max(known) - min(known) if known else 0.0


def _between(before: EngineSignals, after: EngineSignals) -> Interval:
    seconds = max(after.at - before.at, 0.0)
    if _has_restarted(before, after):
        return Interval(seconds=seconds, restarted=True)
    return Interval(
        seconds=seconds,
        prompt_tokens=_grown(before.prompt_tokens, after.prompt_tokens),
        queried_tokens=_grown(before.queried_tokens, after.queried_tokens),
        cached_tokens=_grown(before.cached_tokens, after.cached_tokens),
        ttft=_more(before.ttft, after.ttft),
        itl=_more(before.itl, after.itl),
        queue=_more(before.queue, after.queue),
    )


def _has_restarted(before: EngineSignals, after: EngineSignals) -> bool:
    """Tell by another start time, or by any counter that fell; a counter that went missing says nothing."""
    if before.started is not None and after.started is not None and abs(after.started - before.started) > _SAME_START:
        return True
    return any(
        was is not None and has is not None and has < was
        for was, has in zip(_counters(before), _counters(after), strict=True)
    )


def _counters(signals: EngineSignals) -> list[float | None]:
    counters = [signals.prompt_tokens, signals.queried_tokens, signals.cached_tokens]
    for times in (signals.ttft, signals.itl, signals.queue):
        counters += (None, None) if times is None else (times.sum, times.count)
    return counters


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _more(before: Times | None, after: Times | None) -> Times | None:
    if before is None or after is None:
        return None
    return Times(after.sum - before.sum, after.count - before.count)
