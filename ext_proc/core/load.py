"""What is in flight at one endpoint: counts, and a virtual prefill queue that first tokens and ends set right."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

import msgspec

from ext_proc.core.prefill import Prefill
from ext_proc.core.rank_queue import RankQueue
from ext_proc.core.sharing import Sharing

_RECENT = 256
_MOST_VOID = 256


class Service(NamedTuple):
    """What an engine did up to a first token.

    Attributes:
        seconds: how long it prefilled.
        work: what it prefilled meanwhile, effective tokens.
        own: how long this one prompt took, if that is known.
    """

    seconds: float
    work: float
    own: float | None


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a request stands in an endpoint's queue: what was sent up to it, itself included.

    Attributes:
        sent: seconds of prefill.
        work: effective tokens.
        silent: effective tokens of requests that tell no first token.
        tells: whether its own would be heard of.
    """

    sent: float = 0.0
    work: float = 0.0
    silent: float = 0.0
    tells: bool = False


NO_PLACE = Place()


class Load(msgspec.Struct, gc=False):
    """What is in flight at one endpoint.

    Attributes:
        in_flight: requests (n).
        tokens: prompt and expected output tokens of those requests (M).
        busy_until: when the virtual prefill queue is empty (B), monotonic seconds.
        dispatched: seconds of prefill ever sent here.
        begun: how much of that is known to be done, by first tokens and ends.
        void: places and seconds of requests that were never prefilled, as far as they lie beyond `begun`.
        recent: seconds of prefill of the latest dispatches; None unless the engine's queue is known.
        work: effective tokens ever sent here.
        silent: the part of that whose requests tell no first token.
        idle: when the queue was last seen empty at a dispatch, and what had been sent by then.
        heard: when the last first token came, and what had been sent up to it.
        sharing: what of those requests is the same, since memory was getting short; None if it never was.
        later: tokens of those that take no memory yet: half of each answer, since on average half of it is there.
        ranked: the queue of an engine with several data-parallel ranks; then `busy_until` is when one of them is free.
    """

    in_flight: int = 0
    tokens: int = 0
    busy_until: float = 0.0
    dispatched: float = 0.0
    begun: float = 0.0
    void: list[tuple[float, float]] = msgspec.field(default_factory=list)
    recent: deque[float] | None = None
    work: float = 0.0
    silent: float = 0.0
    idle: tuple[float, Place] = (0.0, Place())
    heard: tuple[float, Place] = (0.0, Place())
    sharing: Sharing | None = None
    later: int = 0
    ranked: RankQueue | None = None

    @property
    def pinned(self) -> int:
        """Tokens of KV memory that the requests in flight hold on average, what they share counted once."""
        tokens = self.tokens - self.later
        return tokens if self.sharing is None else max(tokens - self.sharing.tokens, 0)

    @property
    def left(self) -> float:
        """Seconds of prefill that were sent and are not known to be done."""
        void = sum([seconds for _, seconds in self.void]) if self.void else 0.0
        return max(self.dispatched - self.begun - void, 0.0)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the engine (N)."""
        return 1 if self.ranked is None else self.ranked.ranks

    def serve(self, ranks: int, untold: Collection[Place] = ()) -> None:
        """Let so many ranks serve the queue from now on; what is in flight counts on.

        Args:
            ranks: how many.
            untold: places of the requests in flight whose first token was not heard of.
        """
        if ranks == self.ranks:
            return
        if ranks == 1:
            self.ranked = None
            return
        silent = deque(sorted(place.silent for place in untold if not place.tells))
        telling = sum(place.tells for place in untold)
        self.ranked = RankQueue(ranks, drained_at=self.busy_until, telling=telling, silent=silent)

    def add(self, prefill: Prefill, tokens: int, now: float, *, tells: bool, later: int = 0) -> Place:
        """Count a dispatch.

        Args:
            prefill: what is predicted of its prefill.
            tokens: prompt and expected output tokens.
            now: monotonic seconds.
            tells: whether its first token would be heard of.
            later: those of the tokens that take no memory yet.
        """
        seconds, work = prefill.seconds, prefill.work
        if self.busy_until <= now:
            self.busy_until = now
            self.idle = (now, Place(self.dispatched, self.work, self.silent))
        self.in_flight += 1
        self.tokens += tokens
        self.later += later
        self.busy_until += seconds
        self.dispatched += seconds
        self.work += work
        if not tells:
            self.silent += work
        if self.recent is not None:
            self.recent.append(seconds)
        if self.ranked is not None:
            self.busy_until = self.ranked.join(seconds, now, silent=self.silent, tells=tells)
        return Place(self.dispatched, self.work, self.silent, tells)

    def release(self, tokens: int, now: float, later: int = 0, untold: Place | None = None) -> None:
        """Count an end; `untold` is the place of a request whose first token was not heard of."""
        self.in_flight -= 1
        self.tokens -= tokens
        self.later -= later
        if not self.in_flight:
            self.busy_until = min(self.busy_until, now)
            self.begun = self.dispatched
            self.void.clear()
        if self.ranked is not None:
            if not self.in_flight:
                self.ranked.clear(now)
            elif untold is not None:
                self.ranked.gone(now, silent=untold.silent, tells=untold.tells)

    def done(self, place: Place) -> None:
        """Note that everything up to a place is prefilled: engines serve first come, first served."""
        if place.sent > self.begun:
            self.begun = place.sent
            if self.void:
                self.void = [each for each in self.void if each[0] > self.begun]

    def prefilled(self, place: Place, now: float) -> None:
        """Note that everything up to a place is prefilled, by the end of its request."""
        self.done(place)
        if self.recent is not None:  # the engine tells its queue, with what others sent
            return
        if self.ranked is None:
            self.busy_until = min(self.busy_until, now + self.left)
        else:
            self.busy_until = self.ranked.hold(min(self.ranked.left(now), self.left), now)

    def cancel(self, place: Place, seconds: float, now: float) -> None:
        """Take a request out of the queue that was never prefilled, wherever it stands there."""
        if place.sent <= self.begun or not self.in_flight:
            return
        if self.ranked is None:
            self.busy_until = max(self.busy_until - seconds, now)
        else:
            self.busy_until = self.ranked.hold(max(self.ranked.left(now) - seconds, 0.0), now)
        self.void.append((place.sent, seconds))
        if len(self.void) > _MOST_VOID:
            self.begun += self.void.pop(0)[1]

    def answer(self, place: Place, prefill: Prefill, sent_at: float, now: float) -> Service:
        """Set the queue right by a first token, and tell what was served up to it.

        Between two first tokens lies the service of one prompt; where others that tell nothing were sent in between,
        it is that of all since the queue was last known to be empty.

        Args:
            place: the request's place in the queue.
            prefill: what was predicted of its prefill.
            sent_at: when it was sent.
            now: monotonic seconds.
        """
        self.done(place)
        own = prefill.work
        if self.ranked is not None:
            self.busy_until = self.ranked.hold(self.left, now)
            return Service(
                self.ranked.answer(place.silent, now), own, None if prefill.wait > 0 else max(now - sent_at, 0.0)
            )
        self.busy_until = now + self.left
        heard_at, heard = max(self.heard, self.idle, key=lambda known: (known[1].work, known[0]))
        alone = place.silent <= heard.silent
        since = max(self.heard[0], sent_at if alone else heard_at)
        work = own if alone else max(place.work - heard.work, 0.0)
        self.heard = (max(self.heard[0], now), max(self.heard[1], place, key=lambda known: known.work))
        seconds = max(now - since, 0.0)
        return Service(seconds, work, seconds if alone else None)

    def correct(self, waiting: int, running: int, now: float) -> None:
        """Set the queue right by the requests that an engine says are waiting and running.

        Those that wait are taken to be the latest ones, ours in proportion to what we have there, and half of the next
        one to be done (the waiting correction of the policy). For engines whose first tokens are not heard of.
        """
        if self.recent is None:
            self.recent = deque(maxlen=_RECENT)
        recent = self.recent
        if not recent:
            return
        if not waiting:
            self._shorten(recent[-1], now)
            return
        own = round(waiting * min(self.in_flight / max(waiting + running, 1), 1.0))
        latest = list(islice(reversed(recent), own + 1))
        seconds = sum(latest[:own]) + sum(latest[own:]) / 2
        seconds += (waiting - own) * sum(recent) / len(recent)
        self.busy_until = now + seconds if self.ranked is None else self.ranked.hold(seconds + self.ranked.spare, now)

    def _shorten(self, most: float, now: float) -> None:
        """Let nobody wait for more than so many seconds of prefill."""
        if self.ranked is None:
            self.busy_until = min(self.busy_until, now + most)
        else:
            self.busy_until = self.ranked.hold(min(self.ranked.left(now), most + self.ranked.spare), now)
