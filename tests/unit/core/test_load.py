"""The virtual queue of one endpoint, and what first tokens tell of its service."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from ext_proc.core.load import Load, Place
from tests.unit.core.queue_steps import RATE, Step, add, play, prefill, steps


def test_what_was_cancelled_does_not_come_back() -> None:
    """A request that left the queue stays out of it whatever is heard of those before and behind it."""
    load = Load()
    first, second, third = (add(load, 1000, 0.0) for _ in range(3))
    load.release(1000, 0.0)
    load.cancel(second, 1.0, 0.0)
    assert load.busy_until == 2.0
    load.answer(first, prefill(1000), 0.0, 1.0)
    assert (load.left, load.busy_until) == (1.0, 2.0)
    load.answer(third, prefill(1000), 0.0, 2.0)
    assert (load.left, load.void) == (0.0, [])


def test_an_idle_queue_forgets_what_never_happened() -> None:
    """When nothing is in flight nothing is left to do."""
    load = Load()
    places = [add(load, 1000, 0.0) for _ in range(2)]
    for place in places:
        load.release(1000, 0.0)
        load.cancel(place, 1.0, 0.0)
    assert (load.left, load.busy_until, load.void) == (0.0, 0.0, [])


def test_cancellations_take_bounded_memory() -> None:
    """A thousand clients that leave a stuck engine are not remembered one by one."""
    load = Load()
    add(load, 1000, 0.0)
    for _ in range(1000):
        place = add(load, 1000, 0.0)
        load.release(1000, 0.0)
        load.cancel(place, 1.0, 0.0)
    assert len(load.void) <= 256
    assert load.left == pytest.approx(1.0)


@pytest.mark.parametrize("silent", [0.0, 0.3, 0.5, 0.8])
def test_service_is_what_the_engine_did(silent: float) -> None:
    """However many requests tell no first token, work over service is the engine's rate, not that of the heard ones."""
    load, generator = Load(), random.Random(6)
    now = free = work = seconds = 0.0
    ready: list[tuple[float, float, float, Place, bool]] = []
    for _ in range(3000):
        now += generator.expovariate(0.9 * RATE / 1000)
        while ready and ready[0][0] <= now:
            at, tokens, sent, place, tells = ready.pop(0)
            if tells:
                service = load.answer(place, prefill(tokens), sent, at)
                work, seconds = work + service.work, seconds + service.seconds
            load.release(int(tokens), at)
        tokens, tells = generator.choice([200.0, 800.0, 2000.0]), generator.random() >= silent
        place = add(load, tokens, now, tells=tells)
        free = max(free, now) + tokens / RATE
        ready.append((free, tokens, now, place, tells))
    assert work / seconds == pytest.approx(RATE, rel=0.05)


def test_only_a_prompt_by_itself_tells_of_attention() -> None:
    """Where a silent request was served in between, the service is not that of one prompt."""
    load = Load()
    first, second = add(load, 500, 0.0), add(load, 500, 0.0)
    assert load.answer(first, prefill(500), 0.0, 0.5) == (0.5, 500, 0.5)
    add(load, 500, 0.6, tells=False)
    third = add(load, 500, 0.6)
    assert load.answer(second, prefill(500), 0.0, 1.0) == (0.5, 500, 0.5)
    assert load.answer(third, prefill(500), 0.6, 2.0) == (1.0, 1000, None)


@given(steps("adcr"))
def test_the_queue_is_never_negative(drawn: list[Step]) -> None:
    """Whatever comes in whatever order, what is left is finite and not negative, and services too."""
    load = Load()
    for _ in play(load, drawn):
        assert 0 <= load.left < 1e9
        assert load.busy_until >= 0
