"""Bounded waiting: what happens to requests whose endpoints are all at their caps, or not there yet.

They wait in rows, one for all requests of a pool that the same endpoints may serve, and whenever a place may have come
free the first of each row is decided by the ordinary pick. A row is strict: while its first finds no place, nobody
behind it is tried, so a large request is not starved by small ones. Bounds hold per pool, over all of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil

import msgspec
from xxhash import xxh3_64_intdigest

from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.errors import (
    Asleep,
    Displaced,
    NoReadyEndpoint,
    NotYetScaled,
    Overload,
    QueueFull,
    Refusal,
    Saturated,
    ShuttingDown,
    WaitedInVain,
)
from ext_proc.core.expectations import Expectations
from ext_proc.core.filters import meant
from ext_proc.core.generator import Generator
from ext_proc.core.ledger import Ledger
from ext_proc.core.model import NEARLY_FREE, Endpoint, InferenceRequest
from ext_proc.core.observer import Observer
from ext_proc.core.pool import Registry
from ext_proc.core.promises import Promise, expected_rate, predicted_wait, retry_after
from ext_proc.core.sleepers import Sleepers
from ext_proc.core.turn import Turn
from ext_proc.core.waiting_room import NO_LIMITS, Fill, Limits, Room, Row

_OVERHEAD = 4096
"""Bytes that a waiting request takes beside its prompt: an exchange, a task, a timer, headers."""

_EARLY_S = 0.5
"""Seconds before its time at which a request counts as obeying Retry-After."""

_FROM_ZERO_RETRY_S = 60
"""Seconds of Retry-After, at most, while nobody knows when the first endpoint comes."""

_BUSY = "All endpoints of the requested model are busy. Try again later."
_NOT_UP = "No endpoint of the requested model is up yet. Try again later."
_ASLEEP = "The endpoints of the requested model are asleep. Try again later."
_ENDING = "The service is restarting. Try again."


class Admission:
    """The waiting rooms of all pools.

    Args:
        registry: the endpoints.
        ledger: work in flight.
        expectations: how long answers will be, and how long they take.
        gate: knows the caps.
        observer: hears how long requests waited and what for.
        generator: spreads what Retry-After says.
        is_proven: tells whether the endpoint in a slot has shown that it can serve.
        sleepers: knows whose engines sleep.

    Attributes:
        on_wait: called when a request begins to wait and none did before.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        expectations: Expectations,
        gate: CapacityGate,
        observer: Observer,
        generator: Generator,
        is_proven: Callable[[int], bool] = lambda _slot: True,
        sleepers: Sleepers | None = None,
    ) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._sleepers = sleepers or Sleepers()
        self._is_proven = is_proven
        self._registry = registry
        self._ledger = ledger
        self._expectations = expectations
        self._gate = gate
        self._observer = observer
        self._generator = generator
        self._rooms: dict[str, Room] = {}
        self._waiting = 0
        self._closed = False
        self._trying = False
        self._again = False

    def __len__(self) -> int:
        """Return how many wait."""
        return self._waiting

    @property
    def fills(self) -> dict[str, Fill]:
        """How full the waiting room of each pool is."""
        return {name: room.fill for name, room in self._rooms.items()}

    def configure(self, limits: Mapping[str, Limits]) -> None:
        """Set the limits of pools; who waits already stays, though nobody waits for a pool that is gone to come."""
        for name in self._rooms.keys() - limits.keys():
            room = self._rooms[name]
            if room.rows:
                room.limits = msgspec.structs.replace(room.limits, from_zero=0.0, wake=0.0)
            else:
                del self._rooms[name]
        for name, its in limits.items():
            room = self._room(name)
            room.limits = its
            room.promises.limit = its.promises

    def is_behind(self, request: InferenceRequest, subset: Collection[str] | None, priority: int) -> bool:
        """Tell whether others of no lower priority wait for endpoints that this request asks for."""
        if not self._waiting or request.operation in NEARLY_FREE:
            return False
        return any(self._before(self._wanted(request, subset), priority))

    def may_wait(self, request: InferenceRequest, refusal: Refusal, subset: Collection[str] | None = None) -> bool:
        """Tell whether a request that found no endpoint may wait for one, or for one to come or to wake."""
        if isinstance(refusal, Saturated):
            return True
        return isinstance(refusal, NoReadyEndpoint | Asleep) and self._cold_pool(request, subset) is not None

    def join(self, turn: Turn, now: float, *, cold: bool | None = None) -> Refusal | None:
        """Let a request wait, or return why it may not; perhaps another one makes room for it.

        Args:
            turn: the request; what is still to be known of it is filled in.
            now: monotonic seconds.
            cold: True if no endpoint is ready that could serve it, busy or not; None if it was not tried, since others
                wait before it: then what holds for them holds for it.
        """
        wanted = self._wanted(turn.request, turn.subset)
        turn.pool = wanted[0].pool if wanted else self._cold_pool(turn.request, turn.subset) or ""
        turn.cost = self._gate.claim(turn.request)
        turn.size = len(turn.request.prompt) + turn.held + _OVERHEAD
        if self._closed:
            return ShuttingDown(_ENDING)
        room = self._room(turn.pool)
        if cold is None:
            cold = room.limits.cold > 0 and self._is_cold(wanted, turn.priority)
        turn.cold = cold
        content = _content(turn)
        room.promises.expire(now)
        promise = room.promises.find(content)
        turn.returned = promise is not None and promise.due <= now + _EARLY_S
        wait = (room.limits.cold if turn.cold else 0.0) or room.limits.wait
        if not room.limits.requests or not wait:
            return self._later(NotYetScaled if cold else Saturated, turn, now)
        if not self._make_place(room, turn, now):
            return self._later(QueueFull, turn, now)
        room.promises.take(content)
        room.pace.pass_time(now, waiting=len(room.waiting) > 0)
        turn.deadline = now + wait
        room.enter(turn, tuple(endpoint.generation for endpoint in wanted))
        self._waiting += 1
        if self._waiting == 1:
            self.on_wait()
        return None

    def leave(self, turn: Turn, now: float) -> None:
        """Let a request go whose client is gone; one that does not wait is no error."""
        if turn.is_waiting:
            self._remove(turn, "gone", now)

    def expire(self, turn: Turn, now: float) -> None:
        """Refuse a request that waited as long as it may; one that does not wait is no error.

        Before that it is tried all the same where endpoints have yet to show that they serve: maybe only probes fail.
        """
        if not turn.is_waiting:
            return
        action = self._try(turn, now) if self._awaits_proof(turn) else None
        if action is not None:
            self._remove(turn, "served" if turn.placed else "refused", now)
            _answer(turn, action)
        else:
            is_cold = turn.row.is_cold
            self._remove(turn, "deadline", now)
            _answer(turn, turn.refuse(self._later(NotYetScaled if is_cold else WaitedInVain, turn, now)))

    def close(self, now: float) -> None:
        """Refuse all that wait and all that will come: the service ends."""
        self._closed = True
        for row in list(self._rows()):
            while (turn := row.first()) is not None:
                self._remove(turn, "stopped", now)
                _answer(turn, turn.refuse(ShuttingDown(_ENDING)))

    def dispatch(self, now: float) -> None:
        """Decide whoever is first in a row and finds a place now, until nobody does."""
        self._again = True
        if self._trying:  # a pick of ours freed a place
            return
        self._trying = True
        try:
            while self._again:
                self._again = False
                self._serve(now)
        finally:
            self._trying = False

    def to_wake(self) -> Iterator[Sequence[Endpoint]]:
        """Return, of each row that waits for an engine to wake, the endpoints of which one is to be woken."""
        for row in self._rows():
            turn = row.first()
            if turn is not None and turn.cold and self._rooms[turn.pool].limits.wake:
                found = self._sleepers.wakeable(self._wanted(turn.request, turn.subset))
                if found:
                    yield found

    def predicted(self, turn: Turn, slots: Sequence[int]) -> float:
        """Return the seconds until there is a place for a request that stands behind all of its priority."""
        room = self._room(turn.pool)
        requests, cost = room.waiting.before(turn.priority)
        promised = (0, 0.0) if turn.returned else room.promises.tally.before(turn.priority)
        loads = self._ledger.loads_of(slots)
        residence = self._expectations.of(turn.request.model or self._registry.snapshot.sole_model).residence
        expected = expected_rate(sum(load.in_flight for load in loads), sum(load.tokens for load in loads), residence)
        return predicted_wait(
            requests + promised[0] + 1,
            cost + promised[1] + turn.cost if self._gate.counts_tokens(slots) else 0.0,
            room.pace.rate(turn.priority, expected),
        )

    def _serve(self, now: float) -> None:
        rows = list(self._rows())
        while rows:
            row = min(rows, key=lambda each: each.rank)
            turn = row.first()
            action = None if turn is None or self._awaits_proof(turn) else turn.pick(now)
            if turn is None or action is None:
                rows.remove(row)
                continue
            self._remove(turn, "served" if turn.placed else "refused", now)
            _answer(turn, action)

    def _awaits_proof(self, turn: Turn) -> bool:
        """Tell whether a request waits for a first endpoint, and those there are may not even listen yet."""
        if not turn.cold or not self._rooms[turn.pool].limits.proof:
            return False
        wanted = self._wanted(turn.request, turn.subset)
        awake = [endpoint.slot for endpoint in wanted if endpoint.slot not in self._sleepers]
        return bool(awake) and not any(map(self._is_proven, awake))

    def _try(self, turn: Turn, now: float) -> object:
        """Try one out of its turn; None if there is no place for it."""
        trying, self._trying = self._trying, True  # what the pick sets free must not serve it a second time
        try:
            return turn.pick(now)
        finally:
            self._trying = trying

    def _rows(self) -> Iterable[Row]:
        return chain.from_iterable(room.rows.values() for room in self._rooms.values())

    def _room(self, pool: str) -> Room:
        room = self._rooms.get(pool)
        if room is None:
            room = self._rooms[pool] = Room(pool, NO_LIMITS)
        return room

    def _wanted(self, request: InferenceRequest, subset: Collection[str] | None) -> Sequence[Endpoint]:
        """Return the endpoints that may serve a request, in whatever state they are."""
        wanted = meant(request, self._registry.snapshot)
        return wanted if subset is None else [endpoint for endpoint in wanted if endpoint.address in subset]

    def _before(self, wanted: Iterable[Endpoint], priority: int) -> Iterator[Row]:
        """Return the rows of no lower priority for some of these endpoints."""
        asked = {endpoint.generation for endpoint in wanted}
        return (row for row in self._rows() if row.highest >= priority and not asked.isdisjoint(row.generations))

    def _is_cold(self, wanted: Iterable[Endpoint], priority: int) -> bool:
        """Tell whether all that wait before a request wait for the first ready endpoint."""
        before = [row.is_cold for row in self._before(wanted, priority)]
        return bool(before) and all(before)

    def _cold_pool(self, request: InferenceRequest, subset: Collection[str] | None) -> str | None:
        """Return the pool whose first ready endpoint, or first woken one, a request may wait for."""
        snapshot = self._registry.snapshot
        candidates = meant(request, snapshot)
        if candidates:
            limits = self._room(candidates[0].pool).limits
            may_wait = limits.from_zero or (limits.wake and self._sleepers.wakeable(self._wanted(request, subset)))
            return candidates[0].pool if may_wait else None
        for name, room in self._rooms.items():
            models = room.limits.models
            fits = request.model is None or not models or request.model in models
            if room.limits.from_zero and fits and not snapshot.by_pool.get(name):
                return name
        return None

    def _remove(self, turn: Turn, result: str, now: float) -> None:
        room = self._rooms[turn.pool]
        room.pace.pass_time(now, waiting=True)
        if result == "served":
            room.pace.give(turn.priority, turn.cost)
        room.remove(turn, served=result == "served" and turn.row.first() is turn)
        self._waiting -= 1
        self._observer.waited(turn.pool, result, max(now - turn.since, 0.0))

    def _make_place(self, room: Room, turn: Turn, now: float) -> bool:
        """Find a place for a request in the room of its pool; False if nobody there has less of a claim to one."""
        if not room.could_hold(turn):
            return False
        while not room.has_place(turn.size):
            other = room.giving_way(turn)
            if other is None:
                return False
            self._remove(other, "displaced", now)
            _answer(other, other.refuse(self._later(Displaced, other, now)))
        return True

    def _later(self, kind: type[Overload], turn: Turn, now: float) -> Refusal:
        """Say when to come back, and promise a place for then."""
        room = self._room(turn.pool)
        slots = [endpoint.slot for endpoint in self._wanted(turn.request, turn.subset)]
        if kind is NotYetScaled or not slots:
            seconds = min(max(ceil(room.limits.cold), 1), _FROM_ZERO_RETRY_S)
            is_asleep = any(slot in self._sleepers for slot in slots)
            return Asleep(_ASLEEP, seconds) if is_asleep else NotYetScaled(_NOT_UP, seconds)
        content = _content(turn)
        promise = room.promises.find(content)
        if promise is not None and promise.due > now + _EARLY_S:
            return kind(_BUSY, ceil(promise.due - now))
        seconds = retry_after(self.predicted(turn, slots), self._generator)
        if content:
            room.promises.make(content, Promise(now + seconds, turn.priority, turn.cost))
        return kind(_BUSY, seconds)


def _answer(turn: Turn, action: object) -> None:
    turn.action = action
    turn.call()


def _content(turn: Turn) -> int:
    """Return a hash of what is asked and by whom; 0 for a request whose content is not known."""
    request = turn.request
    if not request.prompt:
        return 0
    named = f"{turn.tenant}\n{request.model}\n{request.operation}\n{request.output_tokens}".encode()
    return xxh3_64_intdigest(request.prompt, xxh3_64_intdigest(named))
