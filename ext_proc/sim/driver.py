"""Turns the scheduler's steps into real time: one timer, and an inbox for each request that waits for tokens."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple, Protocol

from ext_proc.sim.scheduler import Scheduler, SimSequence, State, Step

MAX_LAG = 0.1
"""Seconds that steps may be behind the wall clock before the simulation gives the lost time up."""


class Progress(NamedTuple):
    """Tokens that one sequence of a request got; `place` is the sequence's place in its request."""

    place: int
    tokens: int
    finished: bool


class SequenceObserver(Protocol):
    """Told about the life of sequences, in wall-clock seconds of the loop."""

    def tokens(self, sequence: SimSequence, count: int, now: float, previous: float | None) -> None:
        """`count` tokens came at `now`, after those of `previous` (None for the first)."""

    def ended(self, sequence: SimSequence, reason: str, now: float) -> None:
        """The sequence ended; the reason is one of vLLM's `finished_reason` values."""


class Inbox:
    """What the sequences of one request produced and its handler has not taken yet."""

    def __init__(self, *, quiet: bool) -> None:
        """With `quiet` the handler is only woken when a sequence has ended."""
        self._quiet = quiet
        self._items: list[Progress] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, progress: Progress) -> None:
        """Called by the driver."""
        if self._quiet and not progress.finished:
            return
        self._items.append(progress)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Progress]:
        """Wait for something, then take all of it."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        items, self._items = self._items, []
        return items


class _Subscription(NamedTuple):
    inbox: Inbox
    place: int
    reason: str


class Driver:
    """Runs a scheduler in real time divided by `speed`; an infinite speed answers at once and never waits."""

    def __init__(self, scheduler: Scheduler, speed: float, observer: SequenceObserver) -> None:
        self.scheduler = scheduler
        self._speed = speed
        self._observer = observer
        self._subscriptions: dict[SimSequence, _Subscription] = {}
        self._last_token: dict[SimSequence, float] = {}
        self._timer: asyncio.Handle | None = None
        self._paused = False

    @property
    def instant(self) -> bool:
        """Whether nothing ever waits."""
        return math.isinf(self._speed)

    def start(self, sequence: SimSequence, inbox: Inbox, place: int, reason: str) -> bool:
        """Run a sequence and report to `inbox`; `reason` is why it will end. False if the queue is full.

        Raises:
            ValueError: the sequence is larger than the KV memory.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.instant:
            self.scheduler.run_at_once(sequence, now)
            self._observer.tokens(sequence, sequence.generated, now, None)
            self._observer.ended(sequence, reason, now)
            inbox.put(Progress(place, sequence.generated, finished=True))
            return True
        if not self.scheduler.submit(sequence, now):
            return False
        self._subscriptions[sequence] = _Subscription(inbox, place, reason)
        if self._timer is None and not self._paused:
            # Not at once: requests that arrive together share the first step.
            self._timer = loop.call_soon(self._begin)
        return True

    def abort(self, sequence: SimSequence) -> None:
        """Free what a sequence holds because nobody waits for it; no effect on one that has ended."""
        if self._subscriptions.pop(sequence, None) is not None:
            self._last_token.pop(sequence, None)
            self.scheduler.abort(sequence)
            self._observer.ended(sequence, "abort", asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Cancel the timer; what runs stays as it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self) -> None:
        """Let nothing go on, nor begin, until `go_on`; the step under way is lost."""
        self.stop()
        self._paused = True

    def go_on(self) -> None:
        """Go on where `pause` stopped."""
        self._paused = False
        if self._timer is None and self._subscriptions:
            self._timer = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._plan(asyncio.get_running_loop().time())

    def _plan(self, start: float) -> None:
        step = self.scheduler.plan(start)
        if step is None:
            self._timer = None
            return
        due = start + step.seconds / self._speed
        self._timer = asyncio.get_running_loop().call_at(due, self._end, step, due)

    def _end(self, step: Step, due: float) -> None:
        before = {sequence: sequence.generated for sequence, _ in step.prefill}
        for sequence in self.scheduler.complete(step, due):
            self._report(sequence, sequence.generated - before.get(sequence, sequence.generated - 1), due)
        now = asyncio.get_running_loop().time()
        self._plan(due if now - due < MAX_LAG else now)

    def _report(self, sequence: SimSequence, tokens: int, now: float) -> None:
        subscription = self._subscriptions[sequence]
        self._observer.tokens(sequence, tokens, now, self._last_token.get(sequence))
        self._last_token[sequence] = now
        finished = sequence.state is State.FINISHED
        if finished:
            del self._subscriptions[sequence]
            self._last_token.pop(sequence, None)
            self._observer.ended(sequence, subscription.reason, now)
        subscription.inbox.put(Progress(subscription.place, tokens, finished))
