"""Requests in flight that begin alike."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.siblings import Siblings


def test_lasting_demand_is_told_from_a_burst() -> None:
    """Requests that came at once do not count; each that ended since stands for one of those in flight."""
    siblings = Siblings()
    for _ in range(8):
        siblings.begin(1)
    assert siblings.of(1)[1] == 0
    for ended in (1, 2, 3):
        siblings.end(1)
        siblings.begin(1)
        assert siblings.of(1)[1] == ended
    for _ in range(6):
        siblings.end(1)
    assert siblings.of(1)[1] == 2, "no more than are in flight"


def test_what_nobody_runs_any_more_is_forgotten() -> None:
    """After the last one demand begins anew, and nothing is kept."""
    siblings = Siblings()
    for _ in range(3):
        siblings.begin(1)
    for _ in range(3):
        siblings.end(1)
    siblings.end(1)
    assert len(siblings) == 0
    siblings.begin(1)
    assert siblings.of(1)[1] == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200))
def test_it_counts_what_a_list_of_requests_counts(steps: list[tuple[int, bool]]) -> None:
    """Whatever order requests come and go in, the counts are those of the requests themselves."""
    siblings, running, ended = Siblings(), Counter[int](), Counter[int]()
    for block, comes in steps:
        if comes:
            siblings.begin(block)
            running[block] += 1
        elif running[block]:
            siblings.end(block)
            running[block] -= 1
            ended[block] = ended[block] + 1 if running[block] else 0
        assert [siblings.of(each) for each in range(4)] == [
            (running[each], min(running[each], ended[each])) for each in range(4)
        ]
    assert len(siblings) == sum(count > 0 for count in running.values())
