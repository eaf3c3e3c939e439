"""What holds of health whatever happens: outcomes, probes, metrics and time in any order."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.candidates import Candidates
from ext_proc.core.health import HealthMonitor
from ext_proc.core.health_states import EDGES, OUT, HealthPolicy, HealthState, Verdict
from ext_proc.core.model import Ending, Endpoint
from tests.unit.core.builders import Notes, endpoints, request

ASKED = request()
WELL = 3
"""The place of an endpoint that only ever answers well."""

Step: TypeAlias = tuple[str, int, Any, float]

PLACES = st.sampled_from([0, 1, 2, 4, 5])
PAUSES = st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0, 20.0, 200.0])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("outcome"), PLACES, st.sampled_from(Ending), PAUSES),
        st.tuples(st.just("probe"), PLACES, st.sampled_from(Verdict), PAUSES),
        st.tuples(st.just("scrape"), PLACES, st.booleans(), PAUSES),
        st.tuples(st.just("compare"), PLACES, st.sampled_from([0.5, 1.0, 2.0, 9.0]), PAUSES),
        st.tuples(st.just("pick"), PLACES, st.none(), PAUSES),
        st.tuples(st.just("tick"), PLACES, st.none(), PAUSES),
    ),
    max_size=60,
)
SETTINGS = st.tuples(st.booleans(), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 3))


class Story:
    """Six endpoints that things happen to."""

    def __init__(
        self, probing: bool, max_ejected: float, failures: int, order: tuple[int, ...] = tuple(range(6))
    ) -> None:
        self.notes = Notes()
        self.policy = HealthPolicy(max_ejected=max_ejected, failures=failures)
        self.health = HealthMonitor(self.policy, self.notes)
        self.health.configure(self.policy, probing=probing)
        self.fleet = endpoints(6)
        self.candidates = Candidates(self.fleet[place] for place in order)
        self.health.joined(self.candidates)
        self.now = 1000.0

    def admitted(self, seed: int = 0) -> set[int]:
        """Return the slots that one decision may choose from."""
        return {e.slot for e in self.health.admit(self.candidates, ASKED, self.now, random.Random(seed))}

    def go(self, step: Step) -> None:
        """Let one thing happen."""
        kind, place, what, pause = step
        self.now += pause
        endpoint, health = self.fleet[place], self.health
        if kind == "outcome":
            health.note(endpoint, what, self.now, sent=self.now)
        elif kind == "probe":
            health.probed(endpoint, what, "x", self.now)
        elif kind == "scrape":
            health.scraped(endpoint, self.now, answered=what)
        elif kind == "compare":
            health.compared(endpoint, what, self.now)
        elif kind == "pick":
            self._pick(endpoint)
        else:
            health.tick(self.now)

    def _pick(self, endpoint: Endpoint) -> None:
        if endpoint.slot in self.admitted():
            self.health.dispatched(endpoint, self.now)

    @property
    def out(self) -> int:
        """How many are ejected or on trial."""
        return sum(self.health.state(endpoint.slot) in OUT for endpoint in self.fleet)


@given(SETTINGS, STEPS)
def test_states_move_along_the_edges(settings: tuple[bool, float, int], steps: list[Step]) -> None:
    """Nothing that happens makes an endpoint leap from one state to another that does not follow it."""
    story = Story(*settings)
    before = {endpoint.address: HealthState.READY for endpoint in story.fleet}
    for step in steps:
        story.go(step)
    for address, entered in story.notes.states:
        assert HealthState(entered) in EDGES[before[address]], (before[address], entered)
        before[address] = HealthState(entered)
    for endpoint in story.fleet:
        assert story.health.state(endpoint.slot) is before[endpoint.address]


@given(SETTINGS, STEPS)
def test_never_more_than_allowed_are_out(settings: tuple[bool, float, int], steps: list[Step]) -> None:
    """Whatever fails, the pool keeps the share that the policy reserves; one of several may always be ejected."""
    story = Story(*settings)
    allowed = max(int(settings[1] * 6), 1 if settings[1] else 0)
    for step in steps:
        story.go(step)
        assert story.out <= allowed


@given(SETTINGS, STEPS, st.sets(st.integers(0, 5)))
def test_what_is_absent_does_not_count(settings: tuple[bool, float, int], steps: list[Step], absent: set[int]) -> None:
    """Of those that are there no more are ejected than of a pool of that size."""
    story = Story(*settings)
    slots = {story.fleet[place].slot for place in absent}
    story.health.miss(lambda: slots)
    present = [endpoint for endpoint in story.fleet if endpoint.slot not in slots]
    allowed = max(int(settings[1] * len(present)), 1 if settings[1] and len(present) > 1 else 0)
    for step in steps:
        story.go(step)
        assert sum(story.health.state(endpoint.slot) in OUT for endpoint in present) <= allowed


@given(SETTINGS, STEPS, st.sets(st.integers(0, 5)))
def test_what_is_counted_as_it_happens_is_what_a_look_at_all_finds(
    settings: tuple[bool, float, int], steps: list[Step], absent: set[int]
) -> None:
    """Who is out and whose metrics cannot be read is not counted anew for each endpoint of a pool that falls silent."""
    story = Story(*settings)
    book, pool = story.health._book, story.fleet[0].pool
    gone = {story.fleet[place].slot for place in absent}
    for number, step in enumerate(steps):
        story.go(step)
        if number % 20 == 19:
            story.health.slept(story.fleet[step[1]])
        if number % 20 == 9:
            story.health.woke(story.fleet[step[1]], story.now)
        present = [record for slot, record in book.records.items() if slot not in gone]
        assert book._out.count(pool, gone) == sum(record.state in OUT for record in present)
        assert book._silent.count(pool, gone) == sum(record.evidence.silent_since is not None for record in present)
        assert book.members.present(pool, gone) == 6 - len(gone)
    for endpoint in story.fleet:
        story.health.remove(endpoint.slot)
    assert (book._out._slots, book._silent._slots) == ({}, {})


@given(SETTINGS, STEPS)
def test_the_well_are_always_candidates(settings: tuple[bool, float, int], steps: list[Step]) -> None:
    """An endpoint that only ever answers well is among the candidates of every decision."""
    story = Story(*settings)
    well = story.fleet[WELL]
    for number, step in enumerate(steps):
        story.go(step)
        story.health.note(well, Ending.OK, story.now, sent=story.now)
        assert WELL in story.admitted(number)


@given(SETTINGS, STEPS)
def test_somebody_is_always_left(settings: tuple[bool, float, int], steps: list[Step]) -> None:
    """A request is refused only if every engine says itself that it loads."""
    story = Story(*settings)
    loading: set[int] = set()
    for number, step in enumerate(steps):
        story.go(step)
        if step[0] == "probe":
            (loading.add if step[2] is Verdict.LOADING else loading.discard)(step[1])
        assert story.admitted(number) or len(loading) == 6


@given(SETTINGS, STEPS)
def test_one_trial_at_a_time(settings: tuple[bool, float, int], steps: list[Step]) -> None:
    """Of an endpoint on trial no second request is sent before the first one has ended or was given up."""
    story = Story(*settings)
    for endpoint in story.fleet:
        story.health.note(endpoint, Ending.CONNECT_FAILURE, story.now)
    sent: dict[int, float] = {}
    for step in steps:
        story.go(step)
        if step[0] in {"outcome", "probe"}:
            sent.pop(step[1], None)
        for endpoint in story.fleet:
            slot = endpoint.slot
            if story.health.state(slot) not in OUT:
                sent.pop(slot, None)
            elif story.health.may_serve(slot, story.now):
                assert story.now - sent.get(slot, -1e9) >= story.policy.trial
                story.health.dispatched(endpoint, story.now)
                sent[slot] = story.now
                assert not story.health.may_serve(slot, story.now)


@given(SETTINGS, STEPS, st.permutations(range(6)))
def test_the_order_of_endpoints_changes_nothing(
    settings: tuple[bool, float, int], steps: list[Step], order: tuple[int, ...]
) -> None:
    """In whichever order they are listed, the same ones are in the same state."""
    one, other = Story(*settings), Story(*settings, tuple(order))
    for step in steps:
        one.go(step)
        other.health.configure(other.policy, probing=settings[0])  # and nothing kept of decisions matters
        other.go(step)
    assert [one.health.state(e.slot) for e in one.fleet] == [other.health.state(e.slot) for e in other.fleet]
    assert [one.health.may_serve(e.slot, one.now) for e in one.fleet] == [
        other.health.may_serve(e.slot, one.now) for e in other.fleet
    ]


@given(SETTINGS, STEPS, st.booleans())
def test_the_recovered_come_back(settings: tuple[bool, float, int], steps: list[Step], probed: bool) -> None:
    """Once all requests and probes end well, everybody is ready and has its full share within a bound."""
    probing = settings[0] and probed
    story = Story(probing, *settings[1:])
    for step in steps:
        if probing or step[0] != "probe":
            story.go(step)
    policy, until = story.policy, story.now + story.policy.max_ejection + 6 * 10.0 + story.policy.trial
    for endpoint in story.fleet:
        story.health.scraped(endpoint, story.now, answered=True)
        story.health.compared(endpoint, 1.0, story.now)
    while story.now < until:
        for endpoint in story.fleet:
            if probing:
                story.health.probed(endpoint, Verdict.GOOD, "x", story.now)
            if story.health.may_serve(endpoint.slot, story.now):
                story.health.dispatched(endpoint, story.now)
                story.health.note(endpoint, Ending.OK, story.now + 0.1, sent=story.now)
        story.now += 1.0
        story.health.tick(story.now)
    story.now += policy.slow_start
    story.health.tick(story.now)
    assert {story.health.state(endpoint.slot) for endpoint in story.fleet} == {HealthState.READY}
    assert story.health.admit(story.candidates, ASKED, story.now, random.Random(0)) is story.candidates
