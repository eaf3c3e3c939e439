"""Requests that others placed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.strangers import Strangers

A, B = "10.0.0.11:8000", "10.0.0.12:8000"


def test_one_counts_where_it_was_seen_last() -> None:
    """Until its end, which counts once."""
    strangers = Strangers()
    strangers.seen("1", A, 0.0)
    strangers.seen("1", A, 1.0)
    strangers.seen("2", A, 1.0)
    assert strangers.at(A) == 2
    strangers.seen("1", B, 2.0)
    assert (strangers.at(A), strangers.at(B)) == (1, 1)
    strangers.ended("1")
    strangers.ended("1")
    assert (strangers.at(A), strangers.at(B)) == (1, 0)


def test_silence_is_an_end() -> None:
    """Of those that are not reported any more, and of no other."""
    strangers = Strangers(silence=10.0)
    strangers.seen("1", A, 0.0)
    strangers.seen("2", A, 0.0)
    strangers.seen("1", A, 5.0)
    strangers.expire(10.0)
    assert strangers.at(A) == 1
    strangers.expire(15.0)
    assert strangers.at(A) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([A, B, None])), max_size=60))
def test_counts_are_those_of_the_latest_few(told: list[tuple[str, str | None]]) -> None:
    """Whatever is told, each one counts once, and no more than the bound."""
    strangers, known = Strangers(limit=4), dict[str, str]()
    for name, address in told:
        known.pop(name, None)
        if address is None:
            strangers.ended(name)
        else:
            strangers.seen(name, address, 0.0)
            known[name] = address
            if len(known) > 4:
                del known[next(iter(known))]
        values = list(known.values())
        assert (strangers.at(A), strangers.at(B)) == (values.count(A), values.count(B))
