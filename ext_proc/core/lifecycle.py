"""Where endpoints stand by an operator's word: cordoned, draining or drained; a gate that leaves those out.

A cordoned endpoint takes no new request until that is taken back. A draining one neither, and it is drained once the
last request that runs there has ended, or its deadline has passed. What comes back after a removal starts afresh. An
endpoint that is unready by its source's word is left out as long as that holds. One whose engine sleeps is only shown
here: another gate leaves it out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterable, Sequence, Sized
from collections.abc import Set as AbstractSet
from functools import partial

import msgspec

from ext_proc.core.generator import Generator
from ext_proc.core.load import Load
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.pool import Change
from ext_proc.core.remainders import Remainders


class Stage(enum.StrEnum):
    """How far an endpoint is on its way out."""

    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    UNREADY = "unready"
    ASLEEP = "asleep"


class Mark(msgspec.Struct, eq=False):
    """An operator's word on one endpoint; whoever waits for its end holds on to it.

    Attributes:
        endpoint: which.
        load: what is in flight there, also after its removal.
        others: counts the requests that run there and were placed by others.
        stage: how far it is.
        deadline: when it is drained whatever still runs, monotonic seconds; None while it is not draining.
        left: requests that still ran when the deadline had passed.
        removed: True once the endpoint is not listed any more.
        not_before: when a drain that an earlier process began is over at the earliest, monotonic seconds: by then it is
            heard what that one had placed.
        models: what the endpoint served when an earlier process was given the order, as long as it is not known
            whether it still does.
    """

    endpoint: Endpoint
    load: Load
    others: Callable[[], int] = int
    stage: Stage = Stage.ACTIVE
    deadline: float | None = None
    left: int = 0
    removed: bool = False
    not_before: float = 0.0
    models: frozenset[str] = frozenset()

    @property
    def running(self) -> int:
        """Requests in flight at the endpoint, whoever placed them."""
        return self.load.in_flight + self.others()


class Order(msgspec.Struct, frozen=True):
    """An operator's word on an endpoint as it outlives a process.

    Attributes:
        address: of the endpoint.
        pool: that it belongs to.
        stage: cordoned, draining or drained.
        deadline: when its drain is over at the latest, monotonic seconds; None while it is not draining.
        models: that it served; empty where they were not known.
    """

    address: str
    pool: str
    stage: Stage
    deadline: float | None = None
    models: frozenset[str] = frozenset()


class Lifecycle:
    """The stage of every endpoint, by slot; a gate for those that may be chosen.

    Args:
        load: tells what is in flight at a slot.
        others: counts the requests at an address that were placed by others.
        asleep: the slots whose engines sleep.
    """

    name = "lifecycle"

    def __init__(
        self,
        load: Callable[[int], Load],
        others: Callable[[str], int] = lambda _address: 0,
        asleep: Container[int] = frozenset(),
    ) -> None:
        self._load = load
        self._asleep = asleep
        self._others = others
        self._marks: dict[int, Mark] = {}
        self._gone: dict[int, Mark] = {}
        self._unready: set[int] = set()
        self._rows = Remainders()
        self._kept: dict[tuple[str, str], Order] = {}
        self._kept_until = self._heard = 0.0
        self._mistaken: list[tuple[Mark, Stage]] = []

    @property
    def special(self) -> Sequence[Sized]:
        """What is kept of endpoints that are cordoned, draining, drained or unready."""
        return self._marks, self._unready

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,  # noqa: ARG002  an operator's word holds for all
        now: float,  # noqa: ARG002  at any time
        generator: Generator,  # noqa: ARG002  and for certain
    ) -> Sequence[Endpoint]:
        """Return the candidates that are ready and not cordoned, draining or drained; the same object if all are."""
        if not self._marks and not self._unready:
            return candidates
        return self._rows.of(candidates, self._out)

    def stage(self, slot: int) -> Stage:
        """Return the stage of a slot."""
        mark = self._marks.get(slot)
        return self._unmarked(slot) if mark is None else mark.stage

    @property
    def out(self) -> AbstractSet[int]:
        """The slots that get no new request."""
        return self._out()

    def mark(self, endpoint: Endpoint) -> Mark:
        """Return the mark of an endpoint; one that counts for nothing if nobody said anything of it."""
        known = self._marks.get(endpoint.slot)
        return known or self._made(endpoint, self._unmarked(endpoint.slot))

    @property
    def gone(self) -> Iterable[Mark]:
        """Endpoints that are not listed any more, and where requests still run."""
        return self._gone.values()

    def cordon(self, endpoint: Endpoint) -> Mark:
        """Let an endpoint take no new request; a drain is called off."""
        mark = self._marked(endpoint)
        mark.stage, mark.deadline, mark.left = Stage.CORDONED, None, 0
        return mark

    def drain(self, endpoint: Endpoint, now: float, seconds: float) -> Mark:
        """Let an endpoint take no new request, and end its drain after so many seconds at the latest.

        A drain that goes on gets the new deadline, and so does one that ended by its deadline while requests still run.
        """
        mark = self._marked(endpoint)
        self._begin(mark, now, seconds)
        return mark

    def drain_gone(self, mark: Mark, now: float, seconds: float) -> None:
        """Do the same with an endpoint that is not listed any more."""
        self._begin(mark, now, seconds)

    def undrain(self, endpoint: Endpoint) -> Mark:
        """Let an endpoint take requests again."""
        mark = self.mark(endpoint)
        mark.stage, mark.deadline, mark.left = self._unmarked(endpoint.slot), None, 0
        if self._marks.pop(endpoint.slot, None) is not None:
            self._rows.forget()
        return mark

    def set_ready(self, endpoint: Endpoint, *, ready: bool) -> bool:
        """Note what its source says of an endpoint that stays listed; tell whether that is news."""
        if ready is not (endpoint.slot in self._unready):
            return False
        if ready:
            self._unready.discard(endpoint.slot)
        else:
            self._unready.add(endpoint.slot)
        self._rows.forget()
        return True

    def follow(self, change: Change) -> None:
        """Forget endpoints that went, and remember where requests still run; before their loads are forgotten.

        What a source says is of an address: who takes another one's place there is as unready as that was.
        """
        unready = {endpoint.address for endpoint in change.removed if endpoint.slot in self._unready}
        self._unready -= {endpoint.slot for endpoint in change.removed}
        self._unready |= {endpoint.slot for endpoint in change.added if endpoint.address in unready}
        for endpoint in change.removed:
            mark = self._marks.pop(endpoint.slot, None)
            if mark is None:
                mark = self._made(endpoint, Stage.CORDONED)
            mark.removed = True
            if mark.running or mark.stage is Stage.DRAINING:
                self._gone[endpoint.generation] = mark
        if change:
            self._rows.forget()

    def restore(self, orders: Iterable[Order], until: float, heard: float = 0.0) -> None:
        """Have orders of an earlier process hold once their endpoints are listed.

        Args:
            orders: what it left.
            until: when an endpoint that is not listed yet has been gone for too long; it starts afresh then, like one
                that was seen to be removed. Monotonic seconds.
            heard: when it is known what the earlier process had placed; no drain of it is over before.
        """
        self._kept = {(order.pool, order.address): order for order in orders}
        self._kept_until, self._heard = until, heard

    def welcome(self, change: Change) -> None:
        """Have the kept orders hold for endpoints that came, once there are loads for them.

        An endpoint that serves none of the models that it served is another one, to which the order does not apply.
        """
        if self._marks:
            for endpoint in change.updated:
                self._recognize(endpoint)
        if not self._kept:
            return
        for endpoint in change.added:
            order = self._kept.pop((endpoint.pool, endpoint.address), None)
            if order is not None:
                mark = self._marked(endpoint)
                mark.stage, mark.deadline, mark.not_before = order.stage, order.deadline, self._heard
                mark.models = order.models
                self._recognize(endpoint)

    @property
    def orders(self) -> tuple[Order, ...]:
        """What a successor of this process has to know: the orders that hold, and those still kept."""
        if not self._marks and not self._kept:
            return ()
        marks = self._marks.values()
        return (*self._kept.values(), *map(_order, marks))

    def advance(self, now: float) -> list[Mark]:
        """End the drains that are over, and return them."""
        if self._kept and now >= self._kept_until:
            self._kept.clear()
        if not self._marks and not self._gone:
            return []
        over = [mark for mark in (*self._marks.values(), *self._gone.values()) if _is_over(mark, now)]
        for mark in over:
            mark.stage, mark.deadline, mark.left = Stage.DRAINED, None, mark.running
        for generation in [generation for generation, mark in self._gone.items() if not mark.running]:
            del self._gone[generation]
        return over

    def mistaken(self) -> list[tuple[Mark, Stage]]:
        """Hand over, once, whom an order was taken back of that was given for another one, and where it stood."""
        found, self._mistaken = self._mistaken, []
        return found

    def _recognize(self, endpoint: Endpoint) -> None:
        """Take the order on an endpoint back if it turns out to be another one than it was given for."""
        mark = self._marks.get(endpoint.slot)
        if mark is None:
            return
        mark.endpoint = endpoint
        if mark.models and endpoint.models:
            if mark.models.isdisjoint(endpoint.models):
                self._mistaken.append((mark, mark.stage))
                self.undrain(endpoint)
            mark.models = frozenset()

    def _made(self, endpoint: Endpoint, stage: Stage) -> Mark:
        return Mark(endpoint, self._load(endpoint.slot), partial(self._others, endpoint.address), stage)

    def _unmarked(self, slot: int) -> Stage:
        if slot in self._unready:
            return Stage.UNREADY
        return Stage.ASLEEP if slot in self._asleep else Stage.ACTIVE

    def _out(self) -> AbstractSet[int]:
        return self._marks.keys() | self._unready

    def _marked(self, endpoint: Endpoint) -> Mark:
        mark = self._marks.get(endpoint.slot)
        if mark is None:
            mark = self._marks[endpoint.slot] = self.mark(endpoint)
            self._rows.forget()
        return mark

    def _begin(self, mark: Mark, now: float, seconds: float) -> None:
        if mark.stage is not Stage.DRAINED or mark.running:
            mark.stage, mark.deadline, mark.left = Stage.DRAINING, now + seconds, 0


def _order(mark: Mark) -> Order:
    endpoint = mark.endpoint
    return Order(endpoint.address, endpoint.pool, mark.stage, mark.deadline, endpoint.models or mark.models)


def _is_over(mark: Mark, now: float) -> bool:
    if mark.stage is not Stage.DRAINING:
        return False
    return (not mark.running and now >= mark.not_before) or (mark.deadline is not None and now >= mark.deadline)
