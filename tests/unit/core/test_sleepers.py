"""Whose engines sleep, by whose word, and for how long that is believed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.errors import Asleep, NoReadyEndpoint
from ext_proc.core.lifecycle import Stage
from ext_proc.core.sleepers import Sleepers, SleepLevel, Witness
from tests.unit.core.builders import Fleet, request

WORDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["asleep", "awake", "wait", "remove"]), st.sampled_from(Witness)),
    max_size=40,
)


def fall_asleep(fleet: Fleet, place: int, level: SleepLevel = SleepLevel.WEIGHTS_OFFLOADED) -> None:
    """Let the endpoint in that place say that it sleeps."""
    fleet.sleepers.asleep(fleet.endpoints[place], level, Witness.METRICS, fleet.now)


def test_requests_go_to_who_is_awake() -> None:
    """The gate leaves sleepers out, says so in its report, and gives back the same row where nobody sleeps."""
    fleet = Fleet(3)
    everybody = fleet.registry.snapshot.endpoints
    assert fleet.sleepers.admit(everybody, request(), fleet.now, fleet.generator) is everybody
    fall_asleep(fleet, 0)
    fall_asleep(fleet, 2)
    decision = fleet.pick()
    assert decision.chosen == fleet.endpoints[1]
    assert [(report.name, report.before, report.after) for report in decision.filters] == [
        ("model", 3, 3),
        ("lifecycle", 3, 3),
        ("sleep", 3, 1),
        ("health", 1, 1),
    ]
    assert fleet.lifecycle.stage(fleet.endpoints[0].slot) is Stage.ASLEEP
    left = fleet.sleepers.admit(everybody, request(), fleet.now, fleet.generator)
    assert left is fleet.sleepers.admit(everybody, request(), fleet.now, fleet.generator), "made once"


def test_where_all_sleep_the_refusal_says_so() -> None:
    """503 with a reason of its own and Retry-After; nobody ejected or drained is mistaken for a sleeper."""
    fleet = Fleet(2)
    fall_asleep(fleet, 0)
    fleet.lifecycle.cordon(fleet.endpoints[1])
    refusal = fleet.refusal()
    assert isinstance(refusal, Asleep)
    assert (refusal.status, refusal.reason, refusal.retry_after) == (503, "asleep", 5)
    fleet.lifecycle.cordon(fleet.endpoints[0])
    assert type(fleet.refusal()) is NoReadyEndpoint


def test_an_operators_word_is_shown_before_a_sleep() -> None:
    """Cordoned is what it was told to be; taken back, it still sleeps."""
    fleet = Fleet(1)
    fall_asleep(fleet, 0)
    fleet.lifecycle.cordon(fleet.endpoints[0])
    assert fleet.lifecycle.stage(fleet.endpoints[0].slot) is Stage.CORDONED
    assert fleet.lifecycle.undrain(fleet.endpoints[0]).stage is Stage.ASLEEP


def test_metrics_alone_wake_whom_nobody_else_heard() -> None:
    """The page turns, and the sleep is over."""
    fleet, sleepers = Fleet(1), Sleepers()
    one = fleet.endpoints[0]
    assert sleepers.asleep(one, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 1.0)
    assert not sleepers.asleep(one, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 2.0)
    assert sleepers.awake(one, Witness.METRICS)
    assert not sleepers.awake(one, Witness.METRICS)
    assert one.slot not in sleepers


def test_a_part_that_woke_is_not_the_whole() -> None:
    """After `wake_up?tags=weights` vLLM's metrics say awake and its own answer asleep: the answer counts."""
    fleet, sleepers = Fleet(1), Sleepers()
    one = fleet.endpoints[0]
    sleepers.asleep(one, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 1.0)
    sleepers.asleep(one, SleepLevel.UNKNOWN, Witness.PROBE, 1.5)
    assert not sleepers.awake(one, Witness.METRICS)
    assert one.slot in sleepers
    assert sleepers.awake(one, Witness.PROBE)
    assert one.slot not in sleepers


def test_an_answer_outweighs_an_older_page() -> None:
    """A page is read every few seconds; what the engine answers meanwhile is newer."""
    fleet, sleepers = Fleet(1), Sleepers()
    one = fleet.endpoints[0]
    sleepers.asleep(one, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 1.0)
    assert sleepers.awake(one, Witness.PROBE)
    assert one.slot not in sleepers


def test_a_deeper_sleep_is_news() -> None:
    """From paused to offloaded the cache went, from unknown to known it may have; deeper still changes nothing."""
    fleet, sleepers = Fleet(2), Sleepers()
    one, other = fleet.endpoints
    assert sleepers.asleep(one, SleepLevel.PAUSED, Witness.METRICS, 1.0)
    assert sleepers.asleep(one, SleepLevel.DISCARD_ALL, Witness.METRICS, 2.0)
    assert sleepers.asleep(other, SleepLevel.UNKNOWN, Witness.PROBE, 1.0)
    assert sleepers.asleep(other, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 2.0)
    assert not sleepers.asleep(one, SleepLevel.WEIGHTS_OFFLOADED, Witness.METRICS, 3.0)
    known = sleepers.of(other.slot)
    assert known is not None
    assert (known.level, known.evidence, known.since) == ("weights_offloaded", "is_sleeping, metrics", 1.0)


def test_a_word_that_nobody_repeats_grows_old() -> None:
    """A sleep that was heard of long ago does not hold for ever."""
    fleet, sleepers = Fleet(2), Sleepers(stale=20.0)
    one, other = fleet.endpoints
    sleepers.asleep(one, SleepLevel.UNKNOWN, Witness.METRICS, 0.0)
    sleepers.asleep(other, SleepLevel.UNKNOWN, Witness.METRICS, 0.0)
    sleepers.asleep(other, SleepLevel.UNKNOWN, Witness.PROBE, 19.0)
    assert sleepers.expire(20.0) == []
    assert [sleep.endpoint for sleep in sleepers.expire(20.1)] == [one]
    assert [sleep.endpoint for sleep in sleepers.expire(39.1)] == [other]
    assert not sleepers.slots


@pytest.mark.parametrize(
    ("level", "barred", "expected"),
    [
        (SleepLevel.WEIGHTS_OFFLOADED, False, 1),
        (SleepLevel.UNKNOWN, False, 1),
        (SleepLevel.PAUSED, False, 1),
        (SleepLevel.DISCARD_ALL, False, 0),
        (SleepLevel.UNKNOWN, True, 0),
    ],
)
def test_who_is_worth_waking(level: SleepLevel, barred: bool, expected: int) -> None:
    """Not who has no weights: it would answer nonsense; nor who takes no request anyway."""
    fleet = Fleet(2)
    fall_asleep(fleet, 0, level)
    if barred:
        fleet.lifecycle.cordon(fleet.endpoints[0])
    assert len(fleet.sleepers.wakeable(fleet.endpoints)) == expected


@given(WORDS)
def test_whatever_is_said_the_gate_and_the_book_agree(words: list[tuple[int, str, Witness]]) -> None:
    """Nobody in the book is admitted, everybody else is, and each sleep has a witness."""
    fleet, now = Fleet(3), 0.0
    sleepers = fleet.sleepers
    for place, word, witness in words:
        endpoint = fleet.endpoints[place]
        if word == "asleep":
            sleepers.asleep(endpoint, SleepLevel.UNKNOWN, witness, now)
        elif word == "awake":
            sleepers.awake(endpoint, witness)
        elif word == "remove":
            sleepers.remove(endpoint.slot)
        else:
            now += 15.0
            sleepers.expire(now)
        candidates = fleet.registry.snapshot.endpoints
        admitted = {one.slot for one in sleepers.admit(candidates, request(), now, random.Random(1))}
        assert admitted == {one.slot for one in candidates} - sleepers.slots
        assert all(sleep.heard for slot in sleepers.slots if (sleep := sleepers.of(slot)) is not None)
