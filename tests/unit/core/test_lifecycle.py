"""An operator's word on endpoints."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.core.candidates import Candidates
from ext_proc.core.following import follow
from ext_proc.core.lifecycle import Mark, Stage
from ext_proc.core.model import Decision, Ending, Endpoint
from ext_proc.core.picker import Rejection
from ext_proc.core.pool import Change, EndpointSpec
from ext_proc.core.strategies.session_affinity import SessionAffinity
from tests.unit.core.builders import CHAT, Fleet, request, text

A, B, C = "10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"


class Managed:
    """A fleet whose picker asks an operator's word first."""

    def __init__(self, count: int = 3, strategy: Any = None, **options: Any) -> None:
        self.fleet = Fleet(count, strategy, **options)
        self.lifecycle = self.fleet.lifecycle

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint of an address."""
        return self.fleet.registry.snapshot.by_address[address]

    def list(self, *addresses: str, models: frozenset[str] = CHAT) -> Change:
        """Make these all endpoints there are."""
        change = self.fleet.registry.replace("p", [EndpointSpec(address=each, models=models) for each in addresses])
        self.lifecycle.follow(change)
        fleet = self.fleet
        kept: dict[str, Any] = {"memories": (fleet.health, fleet.rates), "greeters": (fleet.health,)}
        follow(change, ledger=fleet.ledger, index=fleet.index, **kept)
        return change

    def drain(self, address: str, seconds: float = 60.0) -> Mark:
        """Drain an endpoint."""
        mark = self.lifecycle.drain(self.endpoint(address), self.fleet.now, seconds)
        self.lifecycle.advance(self.fleet.now)
        return mark

    def picked(self, count: int = 30) -> Counter[str]:
        """Choose for so many requests that end at once."""
        made: Counter[str] = Counter()
        for _ in range(count):
            decision = self.fleet.pick(request())
            self.fleet.settle(decision)
            made[decision.chosen.address] += 1
        return made


def test_nothing_is_asked_of_a_fleet_that_nobody_spoke_of() -> None:
    """The very same candidates come back, which tells the walk that nothing was removed."""
    managed = Managed()
    candidates = managed.fleet.registry.snapshot.endpoints
    assert managed.lifecycle.admit(candidates, request(), 0.0, random.Random(0)) is candidates


def test_candidates_of_others_come_back_as_they_are() -> None:
    """An endpoint of another model that is drained costs this one's requests no new row."""
    managed = Managed()
    managed.drain(A)
    row = Candidates(managed.fleet.endpoints[1:])
    admit = managed.lifecycle.admit
    assert admit(row, request(), 0.0, random.Random(0)) is row
    every = managed.fleet.registry.snapshot.endpoints
    first = admit(every, request(), 0.0, random.Random(0))
    assert [endpoint.address for endpoint in first] == [B, C]
    assert admit(every, request(), 0.0, random.Random(0)) is first


@pytest.mark.parametrize("order", ["cordon", "drain"])
def test_an_endpoint_taken_out_gets_no_request_and_no_place_among_fallbacks(order: str) -> None:
    """Neither as the choice nor for Envoy's retries; afterwards it serves again."""
    managed = Managed()
    if order == "cordon":
        managed.lifecycle.cordon(managed.endpoint(A))
    else:
        managed.drain(A)
    decisions = [managed.fleet.pick(request()) for _ in range(30)]
    assert A not in {endpoint.address for decision in decisions for endpoint in decision.endpoints}
    managed.lifecycle.undrain(managed.endpoint(A))
    assert managed.picked()[A]


def test_sessions_do_not_follow_their_endpoint_out() -> None:
    """A session whose endpoint drains goes elsewhere, though session-affinity names it."""
    managed = Managed(3, SessionAffinity())
    first = managed.fleet.pick(request(session="s"))
    assert managed.fleet.pick(request(session="s")).chosen is first.chosen
    managed.drain(first.chosen.address)
    assert managed.fleet.pick(request(session="s")).chosen is not first.chosen


def test_a_continued_response_does_not_go_back_to_a_draining_endpoint() -> None:
    """The engine that made the previous response is left alone."""
    managed = Managed()
    managed.fleet.picker.responses.tie("resp_1", A, managed.fleet.now)
    asked = request(previous_response="resp_1")
    assert managed.fleet.pick(asked).chosen.address == A
    managed.drain(A)
    assert managed.fleet.pick(asked).chosen.address != A


def test_a_model_whose_endpoints_are_all_out_is_refused_with_the_reason() -> None:
    """The filters say what an operator took out."""
    managed = Managed(2)
    for address in (A, B):
        managed.drain(address)
    outcome = managed.fleet.picker.pick(request(), managed.fleet.now, managed.fleet.generator)
    assert isinstance(outcome, Rejection)
    assert str(outcome.filters[-1]) == "lifecycle: 0 of 2 match"
    assert outcome.refusal.status == 503


def test_several_ports_of_one_host_are_endpoints_of_their_own() -> None:
    """A prefix leads to its port, and neither an illness nor a drain of one port touches the others (E18)."""
    managed = Managed(0)
    ports = [f"10.0.0.11:{port}" for port in range(8000, 8004)]
    managed.list(*ports)
    fleet, asked = managed.fleet, request(text("system", 8192))
    fleet.settle(fleet.pick(asked, subset={ports[2]}))
    assert fleet.pick(asked).chosen.address == ports[2]
    for _ in range(3):
        fleet.settle(fleet.pick(request(), subset={ports[1]}), Ending.CONNECT_FAILURE, served=ports[1])
    managed.drain(ports[0])
    chosen = {fleet.pick(request(text(number))).chosen.address for number in range(40)}
    assert chosen == set(ports[2:])


def test_a_drain_ends_with_the_last_request() -> None:
    """And not before it."""
    managed = Managed(1)
    decisions = [managed.fleet.pick(request()) for _ in range(3)]
    mark = managed.drain(A)
    for decision in decisions:
        assert (mark.stage, mark.running) == (Stage.DRAINING, 3 - decisions.index(decision))
        managed.fleet.settle(decision)
        managed.lifecycle.advance(managed.fleet.now)
    assert (mark.stage, mark.left, mark.deadline) == (Stage.DRAINED, 0, None)


def test_a_drain_ends_by_its_deadline_and_says_what_was_left() -> None:
    """Requests that still run then are counted, and they go on."""
    managed = Managed(1)
    managed.fleet.pick(request())
    mark = managed.drain(A, 10.0)
    managed.fleet.now += 9.9
    assert managed.lifecycle.advance(managed.fleet.now) == []
    managed.fleet.now += 0.1
    assert managed.lifecycle.advance(managed.fleet.now) == [mark]
    assert (mark.stage, mark.left, mark.running) == (Stage.DRAINED, 1, 1)


def test_a_drain_that_was_too_short_can_be_ordered_again() -> None:
    """The new deadline holds; one that ended well stays drained."""
    managed = Managed(1)
    decision = managed.fleet.pick(request())
    mark = managed.drain(A, 0.0)
    assert mark.stage is Stage.DRAINED
    assert managed.drain(A, 10.0) is mark
    assert (mark.stage, mark.left) == (Stage.DRAINING, 0)
    managed.fleet.settle(decision)
    managed.lifecycle.advance(managed.fleet.now)
    assert managed.drain(A, 10.0).stage is Stage.DRAINED


def test_cordon_has_no_end_and_calls_a_drain_off() -> None:
    """Whoever waits for the drain sees that it is none any more."""
    managed = Managed(1)
    managed.fleet.pick(request())
    mark = managed.drain(A, 10.0)
    managed.lifecycle.cordon(managed.endpoint(A))
    managed.fleet.now += 1e6
    assert managed.lifecycle.advance(managed.fleet.now) == []
    assert (mark.stage, mark.deadline) == (Stage.CORDONED, None)


def test_what_was_drained_stays_so_over_other_changes() -> None:
    """Reading the same list again, or more endpoints, takes nothing back."""
    managed = Managed(2)
    managed.drain(A)
    managed.list(A, B)
    managed.list(A, B, C)
    assert managed.lifecycle.stage(managed.endpoint(A).slot) is Stage.DRAINED


def test_an_endpoint_that_comes_back_starts_afresh() -> None:
    """After a removal nobody remembers the order; neither does the next owner of its slot."""
    managed = Managed(2)
    slot = managed.endpoint(A).slot
    managed.drain(A)
    managed.list(B)
    managed.list(B, C)
    assert managed.endpoint(C).slot == slot
    managed.list(A, B)
    assert managed.lifecycle.stage(managed.endpoint(A).slot) is Stage.ACTIVE
    assert managed.picked()[A]


def test_the_same_address_with_another_model_inherits_no_order() -> None:
    """A new owner of the address is not taken out by what was said of the one before (E04)."""
    managed = Managed(2)
    running = managed.fleet.pick(request(), subset={A})
    mark = managed.drain(A)
    managed.list(A, B, models=frozenset({"acme/embed-1"}))
    assert managed.lifecycle.stage(managed.endpoint(A).slot) is Stage.ACTIVE
    assert (mark.removed, mark.running) == (True, 1)
    managed.fleet.settle(running)
    assert managed.fleet.ledger.load(managed.endpoint(A).slot).in_flight == 0
    assert managed.lifecycle.advance(managed.fleet.now) == [mark]
    assert mark.stage is Stage.DRAINED


def test_a_drain_outlives_the_removal_of_its_endpoint() -> None:
    """A source that drops an endpoint while its preStop hook waits does not cut the wait short."""
    managed = Managed(2)
    running = managed.fleet.pick(request(), subset={A})
    mark = managed.drain(A)
    managed.list(B)
    assert managed.lifecycle.advance(managed.fleet.now) == []
    assert list(managed.lifecycle.gone) == [mark]
    managed.fleet.settle(running)
    assert managed.lifecycle.advance(managed.fleet.now) == [mark]
    assert list(managed.lifecycle.gone) == []


def test_what_runs_at_an_endpoint_that_went_can_be_waited_for() -> None:
    """Also if the drain is ordered after the removal."""
    managed = Managed(2)
    running = managed.fleet.pick(request(), subset={A})
    managed.list(B)
    (mark,) = managed.lifecycle.gone
    managed.lifecycle.drain_gone(mark, managed.fleet.now, 60.0)
    assert managed.lifecycle.advance(managed.fleet.now) == []
    managed.fleet.settle(running)
    assert managed.lifecycle.advance(managed.fleet.now) == [mark]


def test_nothing_is_kept_of_endpoints_that_went_idle() -> None:
    """Only running requests are worth a memory, and not for longer than they run."""
    managed = Managed(3)
    managed.list(C)
    assert list(managed.lifecycle.gone) == []


ADDRESSES = st.sampled_from([A, B, C])


class AnyOrder(RuleBasedStateMachine):
    """Orders, requests, ends, removals and time in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.managed = Managed(3, fallbacks=1)
        self.running: list[Decision] = []
        self.out: set[str] = set()
        self.marks: list[Mark] = []

    @property
    def listed(self) -> set[str]:
        """The addresses that there are."""
        return set(self.managed.fleet.registry.snapshot.by_address)

    @rule(address=ADDRESSES, seconds=st.floats(0, 100))
    def drain(self, address: str, seconds: float) -> None:
        """Drain one."""
        if address in self.listed:
            self.marks.append(self.managed.drain(address, seconds))
            self.out.add(address)

    @rule(address=ADDRESSES)
    def cordon(self, address: str) -> None:
        """Cordon one."""
        if address in self.listed:
            self.managed.lifecycle.cordon(self.managed.endpoint(address))
            self.out.add(address)

    @rule(address=ADDRESSES)
    def undrain(self, address: str) -> None:
        """Take one back."""
        if address in self.listed:
            self.managed.lifecycle.undrain(self.managed.endpoint(address))
            self.out.discard(address)

    @rule(addresses=st.sets(ADDRESSES))
    def list(self, addresses: set[str]) -> None:
        """Change which there are."""
        self.managed.list(*sorted(addresses))
        self.out &= addresses

    @rule()
    def ask(self) -> None:
        """Choose: never one that is out, and always one if any is left."""
        fleet = self.managed.fleet
        outcome = fleet.picker.pick(request(), fleet.now, fleet.generator)
        allowed = self.listed - self.out
        if isinstance(outcome, Rejection):
            assert not allowed
            return
        assert {endpoint.address for endpoint in outcome.endpoints} <= allowed
        self.running.append(outcome)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Let some request end."""
        place = data.draw(st.integers(0, len(self.running) - 1))
        self.managed.fleet.settle(self.running.pop(place))

    @rule(seconds=st.floats(0, 200))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.managed.fleet.now += seconds

    @rule()
    def advance(self) -> None:
        """End what is over: nothing that goes on has lost its last request or its deadline."""
        now = self.managed.fleet.now
        for mark in self.managed.lifecycle.advance(now):
            assert mark.stage is Stage.DRAINED
            assert mark.left == mark.running
        assert all(mark.running for mark in self.managed.lifecycle.gone)
        for mark in self.marks:
            if mark.stage is Stage.DRAINING:  # then it may go on
                assert mark.running
                assert mark.deadline is not None
                assert mark.deadline > now

    @invariant()
    def counts_are_true(self) -> None:
        """Marks count what runs, and the stage is what was said last."""
        running = Counter(decision.chosen.generation for decision in self.running)
        for mark in self.marks:
            assert mark.running == running[mark.endpoint.generation]
        for endpoint in self.managed.fleet.endpoints:
            is_out = self.managed.lifecycle.stage(endpoint.slot) is not Stage.ACTIVE
            assert is_out == (endpoint.address in self.out)

    @invariant()
    def memory_is_bounded(self) -> None:
        """Nothing is remembered that neither runs nor is listed."""
        kept = [mark for mark in self.managed.lifecycle.gone if mark.running]
        assert len(kept) <= len(self.running)
        assert len(self.managed.lifecycle._marks) <= len(self.listed)


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


def test_unready_by_the_sources_word() -> None:
    """Who is listed and not ready is not chosen, and keeps its state; an operator's word counts beside it."""
    managed = Managed()
    managed.list(A, B)
    unready, rows = managed.endpoint(A), managed.fleet.registry.snapshot.endpoints
    assert managed.lifecycle.set_ready(unready, ready=False)
    assert not managed.lifecycle.set_ready(unready, ready=False)
    assert managed.lifecycle.stage(unready.slot) is managed.lifecycle.mark(unready).stage is Stage.UNREADY
    assert set(managed.picked()) == {B}
    assert managed.lifecycle.cordon(unready).stage is Stage.CORDONED
    assert managed.lifecycle.undrain(unready).stage is Stage.UNREADY
    assert set(managed.picked()) == {B}
    assert managed.lifecycle.set_ready(unready, ready=True)
    assert set(managed.picked()) == {A, B}
    assert managed.fleet.registry.snapshot.endpoints is rows


def test_another_engine_at_an_unready_address_is_unready_too() -> None:
    """A pod restarts with another model: until its source says that it is ready, it gets nothing."""
    managed = Managed()
    managed.lifecycle.set_ready(managed.endpoint(A), ready=False)
    before = managed.endpoint(A)
    managed.list(A, B, C, models=frozenset({"another"}))
    assert managed.endpoint(A).generation != before.generation
    assert [managed.lifecycle.stage(managed.endpoint(each).slot) for each in (A, B)] == [Stage.UNREADY, Stage.ACTIVE]
    assert managed.lifecycle.set_ready(managed.endpoint(A), ready=True)


def test_unready_ends_with_the_endpoint() -> None:
    """What comes in the place of an endpoint that was not ready is not judged by it."""
    managed = Managed()
    managed.list(A)
    managed.lifecycle.set_ready(managed.endpoint(A), ready=False)
    managed.list()
    managed.list(A)
    assert set(managed.picked()) == {A}
    assert not managed.lifecycle._unready
