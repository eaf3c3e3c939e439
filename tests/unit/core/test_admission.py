"""Bounded waiting, whatever comes in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.core.admission import Admission
from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.caps import Caps
from ext_proc.core.errors import (
    Displaced,
    NoReadyEndpoint,
    NotYetScaled,
    QueueFull,
    Refusal,
    Saturated,
    ShuttingDown,
    WaitedInVain,
)
from ext_proc.core.model import Operation
from ext_proc.core.turn import Turn
from ext_proc.core.waiting_room import Limits
from tests.unit.core.builders import MODEL, Fleet, Notes, request
from tests.unit.core.waiting import Asker


class Waits(Notes):
    """Keeps how waits ended."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, str, float]] = []

    def waited(self, pool: str, result: str, seconds: float) -> None:
        """Keep it."""
        self.waits.append((pool, result, seconds))


class Hall:
    """Two endpoints that may hold two requests each, and are full; `asker.places` says how many come free."""

    def __init__(self, **limits: Any) -> None:
        self.notes = Waits()
        self.unproven: set[int] = set()
        self.fleet = Fleet(2, notes=self.notes)
        self.gate = CapacityGate(self.fleet.registry, self.fleet.ledger, self.fleet.expectations)
        self.gate.configure({"p": Caps(requests=2)})
        fleet = self.fleet
        self.admission = Admission(
            fleet.registry,
            fleet.ledger,
            fleet.expectations,
            self.gate,
            self.notes,
            fleet.generator,
            lambda slot: slot not in self.unproven,
        )
        self.admission.configure({"p": Limits(**limits)})
        for place in (0, 1):
            fleet.occupy(place, 2)
        self.asker = Asker()
        self.number = 0

    def turn(self, **fields: Any) -> Turn:
        """Make one that wants to wait; each asks something else."""
        self.number += 1
        fields.setdefault("prompt", b"%d" % self.number)
        about = {name: fields.pop(name) for name in ("tenant", "priority", "subset") if name in fields}
        return Turn(self.asker, 4, request(**fields), self.fleet.now, **about)

    def join(self, **fields: Any) -> Turn:
        """Let one wait."""
        made = self.turn(**fields)
        assert self.admission.join(made, self.fleet.now) is None
        return made

    def refusal(self, made: Turn, *, cold: bool = False) -> Refusal:
        """Let one be refused."""
        refusal = self.admission.join(made, self.fleet.now, cold=cold)
        assert refusal is not None
        assert not made.is_waiting
        return refusal

    def free(self, places: int) -> list[Turn]:
        """Let places come free; return who got one."""
        before = len(self.asker.served)
        self.asker.places = places
        self.admission.dispatch(self.fleet.now)
        return self.asker.served[before:]


def test_a_free_place_goes_to_one_that_waits_and_to_one_only() -> None:
    """In order, with its answer at hand; the others are not disturbed."""
    hall = Hall()
    turns = [hall.join() for _ in range(3)]
    called: list[Turn] = []
    for turn in turns:
        turn.call = lambda turn=turn: called.append(turn)  # type: ignore[misc]
    hall.fleet.now += 2.0
    assert hall.free(1) == turns[:1] == called
    assert turns[0].action is turns[0]
    assert len(hall.admission) == 2
    assert hall.notes.waits == [("p", "served", 2.0)]
    assert hall.free(5) == turns[1:]


def test_a_full_room_refuses_and_says_when_to_come_back() -> None:
    """429 with Retry-After by the wait that is predicted: the third, for 4 places of 10 s each."""
    hall = Hall(requests=2)
    hall.join(), hall.join()
    refusal = hall.refusal(hall.turn())
    assert isinstance(refusal, QueueFull)
    assert refusal.status == 429
    assert refusal.retry_after is not None
    assert 11 <= refusal.retry_after <= 12


def test_the_refused_are_told_times_one_after_the_other() -> None:
    """So that they come back as fast as they can be served, and not together."""
    hall = Hall(requests=1)
    hall.join()
    times = [hall.refusal(hall.turn()).retry_after or 0 for _ in range(20)]
    assert times[-1] - times[0] > 40
    assert sorted(times)[::5] == sorted(times[::5])


def test_who_comes_back_as_told_is_let_in_before_the_new() -> None:
    """It takes the place of one that came just now, and is served first."""
    hall = Hall(requests=2, wait=100.0)
    hall.join(), hall.join()
    refused = hall.turn()
    told = hall.refusal(refused).retry_after
    assert told is not None
    hall.fleet.now += told
    again = hall.join(prompt=refused.request.prompt)
    assert again.returned
    assert [type(refusal) for _, refusal in hall.asker.refused] == [Displaced]
    assert hall.free(1) == [again]


def test_who_comes_back_too_early_is_told_the_same_time() -> None:
    """Its promise stands; impatience gains nothing and costs the others nothing."""
    hall = Hall(requests=1)
    hall.join()
    refused = hall.turn()
    told = hall.refusal(refused).retry_after or 0
    hall.fleet.now += 1.0
    for _ in range(3):
        assert hall.refusal(hall.turn(prompt=refused.request.prompt)).retry_after == told - 1
    assert hall.admission.fills["p"].promises == 1


def test_higher_priority_takes_the_place_of_lower_in_a_full_room() -> None:
    """Of the latest to come; lower does not push out higher."""
    hall = Hall(requests=2)
    first, latest = hall.join(priority=-1), hall.join(priority=-1)
    urgent = hall.join(priority=5)
    assert hall.asker.refused[0][0] is latest
    assert isinstance(hall.refusal(hall.turn(priority=-1)), QueueFull)
    assert hall.free(2) == [urgent, first]


def test_a_tenant_that_fills_the_room_makes_room_for_another() -> None:
    """Until both have as many there."""
    hall = Hall(requests=4)
    for _ in range(4):
        hall.join(tenant="flood")
    hall.join(tenant="small"), hall.join(tenant="small")
    assert isinstance(hall.refusal(hall.turn(tenant="small")), QueueFull)
    assert isinstance(hall.refusal(hall.turn(tenant="flood")), QueueFull)
    assert len(hall.asker.refused) == 2


def test_bytes_are_bounded_too() -> None:
    """A few large prompts fill the room; one that can never fit makes nobody go."""
    hall = Hall(bytes=100_000)
    hall.join(prompt=b"x" * 60_000)
    assert isinstance(hall.refusal(hall.turn(prompt=b"y" * 60_000)), QueueFull)
    assert isinstance(hall.refusal(hall.turn(prompt=b"z" * 200_000, priority=9)), QueueFull)
    assert len(hall.admission) == 1


def test_nobody_gives_way_to_one_that_finds_no_place_even_so() -> None:
    """Those above it hold too much: those below would have been sent away for nothing."""
    hall = Hall(bytes=100_000)
    hall.join(prompt=b"x" * 60_000, priority=9)
    hall.join(priority=-1), hall.join(priority=-1)
    assert isinstance(hall.refusal(hall.turn(prompt=b"y" * 60_000, priority=5)), QueueFull)
    assert not hall.asker.refused
    hall.join(prompt=b"z" * 60_000, priority=10)
    assert len(hall.asker.refused) == 3


def test_without_a_queue_the_answer_is_immediate() -> None:
    """A pool may let none wait."""
    hall = Hall(requests=0)
    assert isinstance(hall.refusal(hall.turn()), Saturated)


def test_who_waited_long_enough_is_refused_once() -> None:
    """And who was served before is not refused any more."""
    hall = Hall()
    turn, served = hall.join(), hall.join(priority=1)
    hall.free(1)
    hall.fleet.now = turn.deadline
    for each in (turn, served, turn):
        hall.admission.expire(each, hall.fleet.now)
    assert [type(refusal) for _, refusal in hall.asker.refused] == [WaitedInVain]
    assert len(hall.admission) == 0


def test_a_client_that_leaves_frees_its_place_in_the_queue() -> None:
    """At once, and without a charge."""
    hall = Hall(requests=1)
    gone = hall.join()
    hall.admission.leave(gone, hall.fleet.now)
    hall.admission.leave(gone, hall.fleet.now)
    assert hall.free(1) == []
    hall.join()


def test_the_end_of_the_service_answers_all_that_wait() -> None:
    """With 503, and so it is for all that come then."""
    hall = Hall()
    turns = [hall.join(), hall.join(priority=3)]
    hall.admission.close(hall.fleet.now)
    assert {turn for turn, _ in hall.asker.refused} == set(turns)
    assert all(isinstance(refusal, ShuttingDown) for _, refusal in hall.asker.refused)
    assert isinstance(hall.refusal(hall.turn()), ShuttingDown)


def test_rows_are_by_endpoints_and_do_not_hold_one_another_up() -> None:
    """Who may only go to one endpoint does not stand in the way of others, nor is it overtaken by its equals."""
    hall = Hall()
    first, second = (endpoint.address for endpoint in hall.fleet.endpoints)
    hall.join(subset={first})
    assert hall.admission.is_behind(request(), None, 0)
    assert hall.admission.is_behind(request(), {first}, 0)
    assert not hall.admission.is_behind(request(), {first}, 1)
    assert not hall.admission.is_behind(request(), {second}, 0)


def test_what_costs_an_engine_nothing_waits_behind_nobody() -> None:
    """A list of models is answered however long the queue is."""
    hall = Hall()
    hall.join()
    assert hall.admission.is_behind(request(), None, 0)
    assert not hall.admission.is_behind(request(operation=Operation.LOOKUP), None, 0)


def test_a_pool_without_endpoints_is_waited_for_where_it_is_said_to_come() -> None:
    """Up to its own limit, then 503."""
    hall = Hall(from_zero=30.0, models=frozenset({MODEL}))
    hall.fleet.fill("p")
    refusal = hall.fleet.refusal()
    assert isinstance(refusal, NoReadyEndpoint)
    assert hall.admission.may_wait(request(), refusal)
    turn = hall.turn()
    assert hall.admission.join(turn, hall.fleet.now, cold=True) is None
    assert turn.deadline == hall.fleet.now + 30.0
    hall.admission.expire(turn, turn.deadline)
    told = hall.asker.refused[0][1]
    assert isinstance(told, NotYetScaled)
    assert (told.status, told.retry_after) == (503, 30)


def test_who_comes_behind_those_that_wait_for_the_first_endpoint_waits_as_long() -> None:
    """It is not tried, and yet no endpoint is ready for it either; then 503 as for the others, not 429."""
    hall = Hall(from_zero=60.0, wait=5.0)
    first, second, third = hall.turn(), hall.turn(), hall.turn()
    assert hall.admission.join(first, hall.fleet.now, cold=True) is None
    for behind in (second, third):
        assert hall.admission.is_behind(behind.request, None, 0)
        assert hall.admission.join(behind, hall.fleet.now) is None
        assert behind.deadline == hall.fleet.now + 60.0
    for each in (first, second, third):
        hall.admission.expire(each, each.deadline)
    assert [type(refusal) for _, refusal in hall.asker.refused] == [NotYetScaled] * 3


def test_once_an_endpoint_is_ready_but_busy_the_wait_is_for_a_place() -> None:
    """What the latest try found counts: 429 at the end, and no longer waits for who comes then."""
    hall = Hall(from_zero=60.0, wait=5.0)
    first, second = hall.turn(), hall.turn()
    assert hall.admission.join(first, hall.fleet.now, cold=True) is None
    first.cold = False  # as its owner notes at a try
    assert hall.admission.join(second, hall.fleet.now) is None
    assert second.deadline == hall.fleet.now + 5.0
    hall.admission.expire(first, first.deadline)
    assert isinstance(hall.asker.refused[0][1], WaitedInVain)


def test_rows_for_endpoints_that_went_hold_nobody_up_who_asks_for_their_successors() -> None:
    """A slot passes to an endpoint of another pool; who waits for the one before is not before its clients."""
    hall = Hall(from_zero=60.0)
    waiting = hall.turn()
    assert hall.admission.join(waiting, hall.fleet.now, cold=True) is None
    slots = {endpoint.slot for endpoint in hall.fleet.endpoints}
    hall.fleet.fill("p")
    hall.fleet.fill("q", "10.0.1.1:8000", "10.0.1.2:8000", models=frozenset({"another"}))
    assert {endpoint.slot for endpoint in hall.fleet.endpoints} == slots
    assert not hall.admission.is_behind(request(model="another"), None, 0)
    hall.admission.expire(waiting, waiting.deadline)
    assert isinstance(hall.asker.refused[0][1], NotYetScaled)


def test_a_request_without_a_model_waits_where_the_filters_would_place_it() -> None:
    """Several models are served, and an engine's own `/generate` names none: the bounds of the pool hold for it."""
    hall = Hall(requests=1)
    hall.fleet.fill("q", "10.0.1.1:8000", models=frozenset({"another"}))
    waiting = hall.join(model=None, operation=Operation.GENERATE)
    assert waiting.pool == "p"
    assert isinstance(hall.refusal(hall.turn(model=None, operation=Operation.GENERATE)), QueueFull)
    assert hall.admission.is_behind(request(model=None, operation=Operation.GENERATE), None, 0)


def test_a_turn_that_ends_without_a_place_is_not_counted_as_served() -> None:
    """Its endpoints are drained, say: no place was given, so none is counted on."""
    hall = Hall()
    refused = hall.join()
    hall.asker.take_turn = lambda turn, _now: turn  # type: ignore[method-assign]
    hall.admission.dispatch(hall.fleet.now)
    assert refused.action is refused
    assert hall.notes.waits == [("p", "refused", 0.0)]


def test_nobody_waits_for_a_pool_that_is_configured_no_more() -> None:
    """It will not come; its bounds hold for those that wait until they are gone."""
    hall = Hall(from_zero=30.0)
    hall.fleet.fill("p")
    gone = hall.turn()
    assert hall.admission.join(gone, hall.fleet.now, cold=True) is None
    hall.admission.configure({})
    assert not hall.admission.may_wait(request(), NoReadyEndpoint("x"))
    hall.admission.leave(gone, hall.fleet.now)
    hall.admission.configure({})
    assert not hall.admission.fills


@pytest.mark.parametrize("proof", [True, False])
def test_a_first_endpoint_that_may_not_listen_yet_is_waited_for(proof: bool) -> None:
    """One that a list names may still load; one that a cluster lists is ready, and gets what waits at once."""
    hall = Hall(from_zero=30.0, proof=proof)
    hall.unproven = {endpoint.slot for endpoint in hall.fleet.endpoints}
    waiting = hall.turn()
    assert hall.admission.join(waiting, hall.fleet.now, cold=True) is None
    assert hall.free(1) == ([] if proof else [waiting])
    hall.unproven.pop()
    hall.admission.dispatch(hall.fleet.now)
    assert hall.asker.served == [waiting]


def test_who_waited_long_enough_for_an_endpoint_that_shows_nothing_is_tried_all_the_same() -> None:
    """Perhaps only probes do not get through; one that finds no place even so is refused."""
    hall = Hall(from_zero=30.0, proof=True)
    hall.unproven = {endpoint.slot for endpoint in hall.fleet.endpoints}
    turns = [hall.turn() for _ in range(3)]
    for turn in turns:
        assert hall.admission.join(turn, hall.fleet.now, cold=True) is None
    hall.asker.places = 1
    for turn in turns[1:]:
        hall.admission.expire(turn, turn.deadline)
    assert hall.asker.served == [turns[1]]
    assert [type(refusal) for _, refusal in hall.asker.refused] == [NotYetScaled]
    assert len(hall.admission) == 1


def test_other_refusals_are_not_waited_on() -> None:
    """Not without an announcement, and not for a model that is declared nowhere."""
    hall = Hall()
    assert not hall.admission.may_wait(request(), NoReadyEndpoint("x"))
    hall = Hall(from_zero=30.0, models=frozenset({"another"}))
    hall.fleet.fill("p")
    assert not hall.admission.may_wait(request(), NoReadyEndpoint("x"))


@pytest.mark.parametrize("waiting", range(0, 30, 7))
def test_predicted_wait_grows_with_who_waits(waiting: int) -> None:
    """By what one more adds."""
    hall = Hall(requests=100)
    for _ in range(waiting):
        hall.join()
    turn = hall.join()
    slots = [endpoint.slot for endpoint in hall.fleet.endpoints]
    assert hall.admission.predicted(turn, slots) == pytest.approx((waiting + 2) * 10.0 / 4 / 0.75)


class Walk(RuleBasedStateMachine):
    """Any order of coming, leaving, freeing and running out of time."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall(requests=4, bytes=100_000, promises=3, tenants=2)
        self.waiting: list[Turn] = []
        self.ended: list[Turn] = []
        self.calls = 0

    def settle(self) -> None:
        """Move whoever was answered from those that wait to those that do not."""
        for turn in [turn for turn in self.waiting if turn.action is not None]:
            self.waiting.remove(turn)
            self.ended.append(turn)

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.integers(-1, 1),
        size=st.sampled_from((10, 30_000, 200_000)),
        seconds=st.floats(0, 9),
    )
    def come(self, tenant: str, priority: int, size: int, seconds: float) -> None:
        """Let one come."""
        hall = self.hall
        hall.fleet.now += seconds
        turn = hall.turn(tenant=tenant, priority=priority, prompt=b"%d" % hall.number + b"x" * size)
        turn.call = self.count
        if hall.admission.join(turn, hall.fleet.now) is None:
            self.waiting.append(turn)
        else:
            assert not turn.is_waiting
        self.settle()

    def count(self) -> None:
        """Count the answers."""
        self.calls += 1

    @rule(places=st.integers(0, 3))
    def free(self, places: int) -> None:
        """Let places come free."""
        for turn in self.hall.free(places):
            highest = max(each.priority for each in self.waiting)
            assert turn.priority == highest
            self.waiting.remove(turn)
            self.ended.append(turn)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(place=st.integers(0, 100))
    def leave(self, place: int) -> None:
        """Let a client go."""
        turn = self.waiting.pop(place % len(self.waiting))
        self.hall.admission.leave(turn, self.hall.fleet.now)
        assert turn.action is None

    @rule()
    def deadline(self) -> None:
        """Let the time of one be over, wherever it is by now."""
        if everybody := self.waiting + self.ended:
            self.hall.admission.expire(everybody[-1], self.hall.fleet.now)
        self.settle()

    @invariant()
    def bounds_hold(self) -> None:
        """Never more than may wait, and everybody who waits is counted once."""
        fill = self.hall.admission.fills["p"]
        assert fill.requests == len(self.waiting) == len(self.hall.admission) <= 4
        assert fill.bytes == sum(turn.size for turn in self.waiting) <= 100_000
        assert fill.promises <= 3
        assert all(turn.is_waiting for turn in self.waiting)

    @invariant()
    def answered_once(self) -> None:
        """Who was answered does not wait, and was answered once."""
        answered = self.hall.asker.served + [turn for turn, _ in self.hall.asker.refused]
        assert len(answered) == len(set(answered)) == self.calls == len(self.ended)
        assert not any(turn.is_waiting for turn in self.ended)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_where_nobody_may_wait_an_empty_pool_is_not_called_busy() -> None:
    """There is nobody whose end would free a place: it is 503, as after a wait in vain."""
    hall = Hall(requests=0, from_zero=30.0)
    assert isinstance(hall.refusal(hall.turn(), cold=True), NotYetScaled)
    assert isinstance(hall.refusal(hall.turn(), cold=False), Saturated)
