"""The queue of an engine with several data-parallel ranks, and what first tokens tell of their speed."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.load import Load, Place
from ext_proc.core.rank_queue import RankQueue
from tests.unit.core.queue_steps import RATE, Step, add, play, prefill, steps


def _load(ranks: int) -> Load:
    load = Load()
    load.serve(ranks)
    return load


def test_nobody_waits_while_a_rank_is_free() -> None:
    """Of four ranks three are busy: the fourth begins at once; the request after that waits for the first to end."""
    load = _load(4)
    waits = []
    for _ in range(6):
        waits.append(load.busy_until)
        add(load, 1000, 0.0)
    assert waits == [0.0, 0.0, 0.0, 0.0, pytest.approx(0.25), pytest.approx(0.5)]


def test_ranks_drain_the_queue_together() -> None:
    """Of 40 s of prefill four ranks have done half after 5 s, and one rank an eighth."""
    four, one = _load(4), _load(1)
    for load in (four, one):
        for _ in range(40):
            add(load, 1000, 0.0)
    assert four.busy_until == pytest.approx((40 - 3) / 4)
    assert one.busy_until == pytest.approx(40)
    assert four.ranked is not None
    assert four.ranked.left(5.0) == pytest.approx(20)


def test_one_rank_is_a_plain_queue() -> None:
    """The formula for N ranks is that of one where N is 1."""
    queue, load, now = RankQueue(1), Load(), 0.0
    generator = random.Random(3)
    for _ in range(200):
        now += generator.expovariate(1.0)
        tokens = generator.uniform(100, 3000)
        place = add(load, tokens, now)
        until = queue.join(tokens / RATE, now, silent=place.silent, tells=True)
        assert until == pytest.approx(load.busy_until)


@pytest.mark.parametrize("load_factor", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("silent", [0.0, 0.5])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_rate_of_one_rank_is_learnt(ranks: int, silent: float, load_factor: float) -> None:
    """Idle or overloaded, with requests between that tell nothing: work over service is the rate of one rank."""
    load, generator = _load(ranks), random.Random(6)
    now = work = seconds = 0.0
    free = [0.0] * ranks
    ready: list[tuple[float, int, float, float, Place, bool]] = []
    for number in range(4000):
        now += generator.expovariate(load_factor * ranks * RATE / 1000)
        while ready and ready[0][0] <= now:
            at, _, tokens, sent, place, tells = heapq.heappop(ready)
            if tells:
                service = load.answer(place, prefill(tokens), sent, at)
                work, seconds = work + service.work, seconds + service.seconds
            load.release(int(tokens), at, untold=None if tells else place)
        tokens, tells = generator.choice([200.0, 800.0, 2000.0]), generator.random() >= silent
        place = add(load, tokens, now, tells=tells)
        begun = max(heapq.heappop(free), now)
        heapq.heappush(free, begun + tokens / RATE)
        heapq.heappush(ready, (begun + tokens / RATE, number, tokens, now, place, tells))
    assert work / seconds == pytest.approx(RATE, rel=0.12 if silent else 0.03)


def test_a_prompt_that_found_a_rank_free_tells_of_attention() -> None:
    """What it took is then its own time; behind others nobody knows."""
    load = _load(2)
    place = add(load, 500, 0.0)
    assert load.answer(place, prefill(500), 0.0, 0.6).own == pytest.approx(0.6)
    place = add(load, 500, 1.0)
    assert load.answer(place, prefill(500, wait=0.1), 1.0, 2.0).own is None


def test_who_leaves_before_its_first_token_is_at_no_rank() -> None:
    """Nor does its time count as work of a rank, nor its work as something to wait for."""
    load = _load(2)
    first, second = add(load, 1000, 0.0), add(load, 1000, 0.0)
    load.release(1000, 0.5, untold=second)
    load.cancel(second, 1.0, 0.5)
    assert load.answer(first, prefill(1000), 0.0, 1.0).seconds == pytest.approx(1.5)
    assert load.left == 0.0
    assert load.ranked is not None
    assert load.ranked.telling == 0


def test_silent_requests_are_prefilled_when_the_queue_is_empty() -> None:
    """They may decode for long, but take no rank's time from the prompts that come later."""
    load = _load(2)
    for _ in range(5):
        add(load, 1000, 0.0, tells=False)
    place = add(load, 500, 10.0)
    assert load.answer(place, prefill(500), 10.0, 10.5).seconds == pytest.approx(0.5)


def test_an_idle_engine_begins_anew() -> None:
    """What was counted of requests that are gone does not outlive the last of them."""
    load = _load(4)
    for tells in (True, False, True):
        add(load, 9000, 0.0, tells=tells)
    for _ in range(3):
        load.release(9000, 1.0)
    assert load.ranked is not None
    assert (load.ranked.telling, len(load.ranked.silent), load.ranked.left(1.0)) == (0, 0, 0.0)
    assert load.busy_until <= 1.0


def test_what_an_engine_says_is_waiting_is_shared_by_its_ranks() -> None:
    """Eight wait, a second each, before four ranks: that is two seconds, and none if none waits."""
    load = _load(4)
    load.correct(1, 0, 0.0)
    for _ in range(12):
        add(load, 1000, 0.0)
    load.correct(8, 4, 0.0)
    assert load.busy_until == pytest.approx(8.5 / 4)
    load.correct(0, 4, 0.0)
    assert load.busy_until == pytest.approx(1 / 4)


def test_ranks_may_become_known_while_requests_are_in_flight() -> None:
    """Then what is in flight counts on, and what comes is shared; an unchanged number alters nothing."""
    load = Load()
    places = [add(load, 1000, 0.0) for _ in range(3)]
    load.serve(3)
    ranked = load.ranked
    load.serve(3)
    assert load.ranked is ranked
    assert load.in_flight == 3
    load.answer(places[0], prefill(1000), 0.0, 1.0)
    assert load.busy_until <= 2.0
    load.serve(1)
    assert load.ranked is None
    assert load.ranks == 1


@given(steps("adcrwp"), st.integers(2, 8))
def test_the_queue_of_ranks_is_never_negative(drawn: list[Step], ranks: int) -> None:
    """Whatever comes in whatever order: counts, work and times stay finite and not negative."""
    load = _load(ranks)
    for now, count in play(load, drawn):
        ranked = load.ranked
        assert ranked is not None
        assert min(ranked.telling, load.left, load.busy_until, ranked.left(now), ranked.worked) >= 0
        assert len(ranked.silent) <= count
