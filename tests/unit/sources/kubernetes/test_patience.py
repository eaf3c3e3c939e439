"""An endpoint that was ready keeps its place for a while when it is not."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ext_proc.core.pool import EndpointSpec
from ext_proc.sources.kubernetes.endpoints import Found
from ext_proc.sources.kubernetes.patience import Patience

A, B = "10.0.0.1:80", "10.0.0.2:80"


def found(*unready: str, **owners: str) -> Found:
    """Make endpoints a and b, of these owners."""
    named = {{"a": A, "b": B}[name]: owner for name, owner in owners.items()}
    return Found(tuple(EndpointSpec(address=address) for address in named), named, frozenset(unready))


def test_who_was_never_ready_is_left_out() -> None:
    """Weights that are being loaded make no endpoint."""
    patience = Patience(60.0)
    assert patience.kept(found(A, a="u1", b="u2"), 0.0) == found(b="u2")
    assert patience.until is None


def test_who_was_ready_stays_until_the_time_is_over() -> None:
    """The time begins when readiness is lost, and not again with each look."""
    patience = Patience(60.0)
    patience.kept(found(a="u1"), 0.0)
    assert patience.kept(found(A, a="u1"), 10.0) == found(A, a="u1")
    assert patience.kept(found(A, a="u1", b="u2"), 69.0) == found(A, a="u1", b="u2")
    assert patience.until == 70.0
    assert patience.kept(found(A, a="u1", b="u2"), 70.0) == found(b="u2")
    assert patience.kept(found(A, a="u1", b="u2"), 71.0) == found(b="u2")
    assert patience.kept(found(a="u1"), 80.0) == found(a="u1")


def test_readiness_in_between_counts_anew() -> None:
    """Who flaps is never given up."""
    patience = Patience(60.0)
    for second in range(0, 300, 30):
        assert patience.kept(found(a="u1"), second) == found(a="u1")
        assert patience.kept(found(A, a="u1"), second + 15) == found(A, a="u1")


def test_another_pod_at_the_address_has_no_credit() -> None:
    """A new pod that is not ready does not inherit the place of the old one."""
    patience = Patience(60.0)
    patience.kept(found(a="u1"), 0.0)
    assert patience.kept(found(A, a="u9"), 1.0) == found()


@given(st.lists(st.tuples(st.sampled_from([None, "u1", "u2"]), st.booleans(), st.floats(0.0, 50.0)), max_size=20))
def test_kept_is_who_was_ready_within_the_time(steps: list[tuple[str | None, bool, float]]) -> None:
    """Whatever happens: ready ones are kept, others if their pod was ready at most the time ago and stayed since."""
    patience, now, last_ready = Patience(60.0), 0.0, dict[str, float]()
    lost: float | None = None
    for owner, is_ready, passed in steps:
        now += passed
        seen = found() if owner is None else found(*(() if is_ready else (A,)), a=owner)
        last_ready = {name: at for name, at in last_ready.items() if name == owner}
        if owner is not None and is_ready:
            last_ready, lost = {owner: now}, None
        elif owner in last_ready and lost is None:
            lost = now
        kept = patience.kept(seen, now)
        expected = owner is not None and (is_ready or (owner in last_ready and lost is not None and now < lost + 60.0))
        if owner is not None and not expected:
            last_ready = {}
        if owner not in last_ready:
            lost = None
        assert (A in kept.owners) == expected
