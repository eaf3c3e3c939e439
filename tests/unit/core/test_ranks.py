"""Which data-parallel rank a request is sent to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.ranks import RankLoads


def test_the_rank_that_has_to_compute_least_is_taken() -> None:
    """On idle ranks only the own prefill counts."""
    assert RankLoads().choose(0, [1.0, 0.2, 1.0], 0.0) == 1


def test_equal_ranks_take_turns() -> None:
    """Requests that end at once are spread too."""
    loads, taken = RankLoads(), []
    for number in range(6):
        rank = loads.choose(0, [0.0] * 3, 0.0)
        loads.sent(str(number), 0, rank, 0.0, 0.0)
        loads.ended(str(number))
        taken.append(rank)
    assert taken == [0, 1, 2, 0, 1, 2]


def test_a_rank_with_work_in_front_has_to_be_worth_the_wait() -> None:
    """What it holds is weighed against its queue, which drains by itself."""
    loads = RankLoads()
    loads.sent("a", 0, 1, 2.0, now=10.0)
    assert loads.choose(0, [1.0, 0.1], 10.0) == 0
    assert loads.choose(0, [3.0, 0.1], 10.0) == 1
    assert loads.choose(0, [1.0, 0.1], 11.5) == 1


def test_requests_in_flight_slow_a_prefill() -> None:
    """Each adds three percent, sixty-four of them at most."""
    loads = RankLoads()
    for number in range(80):
        loads.sent(str(number), 0, 0, 0.0, 0.0)
    assert loads.in_flight(0) == [80]
    assert loads.choose(0, [1.0, 2.9], 0.0) == 1
    assert loads.choose(0, [1.0, 2.93], 0.0) == 0


def test_engines_do_not_mix_and_a_successor_inherits_nothing() -> None:
    """What ends after its engine is gone has no effect on the next one in its slot."""
    loads = RankLoads()
    loads.sent("a", 0, 0, 5.0, 0.0)
    assert loads.choose(1, [1.0, 1.5], 0.0) == 0
    loads.remove(0)
    loads.sent("b", 0, 0, 0.0, 0.0)
    loads.ended("a")
    loads.ended("stranger")
    assert loads.in_flight(0) == [1]
    assert loads.choose(0, [1.0, 1.5], 0.0) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=60))
def test_in_flight_is_what_was_sent_and_has_not_ended(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever comes and goes, in any order, counts never drift."""
    loads, plain = RankLoads(), dict[str, int]()
    for rank, name, ends in steps:
        if ends or str(name) in plain:
            loads.ended(str(name))
            plain.pop(str(name), None)
        else:
            loads.sent(str(name), 0, rank, 0.1, 0.0)
            plain[str(name)] = rank
    told = loads.in_flight(0)
    assert told == [list(plain.values()).count(rank) for rank in range(len(told))]
    assert sum(told) == len(plain) == len(loads._sent)
