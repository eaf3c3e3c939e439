"""What engines say of themselves: deltas, restarts, ages and what silence counts as."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.signals import EngineSignals, Interval, Signals, Times

FIRST = EngineSignals(
    at=10.0,
    started=5.0,
    running=2.0,
    prompt_tokens=1000.0,
    queried_tokens=1000.0,
    cached_tokens=400.0,
    ttft=Times(4.0, 8.0),
    itl=Times(2.0, 100.0),
    queue=Times(1.0, 8.0),
)


def later(**fields: Any) -> EngineSignals:
    """Make a reading a second after the first, with other values where the test says so."""
    return EngineSignals(**({name: getattr(FIRST, name) for name in FIRST.__struct_fields__} | {"at": 11.0} | fields))


def between(after: EngineSignals) -> Interval:
    """Return what happened since the first reading."""
    signals = Signals()
    assert signals.note(0, FIRST) is None
    interval = signals.note(0, after)
    assert interval is not None
    assert signals.interval(0) is interval
    return interval


def test_an_interval_is_what_was_added() -> None:
    """Sums and counts between two readings give the means of that time."""
    interval = between(later(ttft=Times(7.0, 10.0), itl=Times(2.5, 150.0), cached_tokens=700.0, prompt_tokens=1600.0))
    assert interval.seconds == 1.0
    assert interval.ttft == Times(3.0, 2.0)
    assert interval.ttft.mean == 1.5
    assert interval.itl is not None
    assert interval.itl.mean == pytest.approx(0.01)
    assert (interval.cached_tokens, interval.prompt_tokens, interval.queried_tokens) == (300.0, 600.0, 0.0)


def test_a_time_without_first_tokens_has_no_mean() -> None:
    """Nothing is divided by nothing."""
    assert between(later()).ttft == Times(0.0, 0.0)
    assert Times(0.0, 0.0).mean is None


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_tokens": 999.0},
        {"cached_tokens": 0.0},
        {"ttft": Times(1.0, 9.0)},
        {"queue": Times(1.0, 0.0)},
        {"started": 9.0, "ttft": Times(50.0, 90.0)},
    ],
    ids=["tokens fell", "hits fell", "sum fell", "count fell", "other start"],
)
def test_a_restart_gives_no_deltas(fields: dict[str, Any]) -> None:
    """Counters of another process have nothing to do with those before (E06)."""
    assert between(later(**fields)) == Interval(seconds=1.0, restarted=True)


def test_after_a_restart_counting_goes_on() -> None:
    """The first reading of the new process is what the next is compared with."""
    signals = Signals()
    for reading in (FIRST, later(ttft=Times(0.5, 1.0))):
        signals.note(0, reading)
    interval = signals.note(0, later(at=12.0, ttft=Times(0.75, 2.0)))
    assert interval is not None
    assert interval.ttft == Times(0.25, 1.0)


def test_a_start_time_written_otherwise_is_no_restart() -> None:
    """Digits that come and go are rounding."""
    assert not between(later(started=5.4)).restarted


@pytest.mark.parametrize("missing", ["ttft", "prompt_tokens", "started"])
def test_what_is_missing_on_one_side_is_unknown(missing: str) -> None:
    """A family that comes or goes gives no delta, and is no restart."""
    interval = between(later(**{missing: None}))
    assert not interval.restarted
    assert getattr(interval, missing, None) is None
    assert interval.itl == Times(0.0, 0.0)


NUMBERS = st.none() | st.floats(0, 1e12)
TIMES = st.none() | st.builds(Times, st.floats(0, 1e9), st.floats(0, 1e9))
READINGS = st.builds(
    EngineSignals,
    at=st.floats(0, 1e6),
    started=NUMBERS,
    prompt_tokens=NUMBERS,
    queried_tokens=NUMBERS,
    cached_tokens=NUMBERS,
    ttft=TIMES,
    itl=TIMES,
    queue=TIMES,
)


@given(st.lists(READINGS, min_size=2, max_size=5))
def test_no_delta_is_ever_negative(readings: list[EngineSignals]) -> None:
    """Whatever an engine says, nothing has happened less than not at all."""
    signals = Signals()
    for interval in filter(None, (signals.note(0, reading) for reading in readings)):
        times = [
            value for each in (interval.ttft, interval.itl, interval.queue) if each for value in (each.sum, each.count)
        ]
        counts = [interval.prompt_tokens, interval.queried_tokens, interval.cached_tokens]
        assert all(value is None or value >= 0 for value in (interval.seconds, *times, *counts))


def test_signals_stay_fades_and_are_gone() -> None:
    """A reading is there until three times the time it is believed, and its age is known even then."""
    signals = Signals(fresh=5.0)
    signals.note(3, FIRST)
    assert signals.of(3, 10.0) is FIRST
    assert signals.of(3, 24.9) is FIRST
    assert signals.of(3, 25.0) is None
    assert signals.age(3, 25.0) == 15.0


def test_an_unknown_slot_has_nothing() -> None:
    """Neither signals nor age nor interval, also after it was forgotten."""
    signals = Signals()
    for reading in (FIRST, later()):
        signals.note(0, reading)
    signals.remove(0)
    signals.remove(1)
    assert [signals.of(slot, 11.0) for slot in (0, 1)] == [None, None]
    assert (signals.age(0, 11.0), signals.interval(0)) == (None, None)
    assert signals.note(0, FIRST) is None


def levels(readings: list[tuple[float, float | None]], now: float) -> list[float] | None:
    """Compare loads of endpoints, each given with its time, at a moment, with five seconds of belief."""
    signals = Signals(fresh=5.0)
    for slot, (at, running) in enumerate(readings):
        signals.note(slot, EngineSignals(at=at, running=running))
    return signals.levels(range(len(readings) + 1), lambda reading: reading.running, now)


def test_silence_is_average() -> None:
    """What one does not say, and one that was never read, count as the mean of the others."""
    assert levels([(0.0, 2.0), (0.0, 6.0), (0.0, None)], now=1.0) == [2.0, 6.0, 4.0, 4.0]


def test_old_readings_move_to_the_mean() -> None:
    """Halfway between fresh and gone half of the difference is left, and the mean counts it half."""
    found = levels([(10.0, 3.0), (0.0, 9.0)], now=10.0)
    assert found == pytest.approx([3.0, 7.0, 5.0])


def test_readings_that_are_gone_are_average() -> None:
    """An endpoint whose metrics stopped long ago is neither preferred nor avoided."""
    assert levels([(100.0, 3.0), (0.0, 0.0)], now=100.0) == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("readings", [[], [(0.0, None)], [(-100.0, 5.0)]], ids=["none", "silent", "gone"])
def test_without_any_knowledge_there_is_nothing_to_compare(readings: list[tuple[float, float | None]]) -> None:
    """Then the caller has to do without."""
    assert levels(readings, now=0.0) is None


@given(st.lists(st.tuples(st.floats(0, 40), st.none() | st.floats(0, 1e6)), max_size=8))
def test_no_level_is_outside_of_what_was_said(readings: list[tuple[float, float | None]]) -> None:
    """Fading and filling in never make an endpoint better than the best or worse than the worst."""
    found = levels(readings, now=40.0)
    said = [running for _, running in readings if running is not None]
    assert found is None or all(min(said) - 1e-6 <= level <= max(said) + 1e-6 for level in found)


def test_the_size_of_blocks_does_not_grow_old() -> None:
    """It stays for as long as the engine does."""
    signals = Signals()
    assert signals.block_tokens(0) is None
    signals.note(0, EngineSignals(at=0.0, block_tokens=32))
    assert signals.block_tokens(0) == 32
    signals.remove(0)
    assert signals.block_tokens(0) is None
