"""Filters: what each leaves, and how that is counted."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from ext_proc.core.capacity_gate import CapacityGate
from ext_proc.core.caps import Caps
from ext_proc.core.filters import Filters, Gate
from ext_proc.core.generator import Generator
from ext_proc.core.model import Ending, Endpoint, InferenceRequest
from ext_proc.core.sleepers import SleepLevel, Witness
from tests.unit.core.builders import Fleet, request


def test_filters_narrow_down_one_after_the_other() -> None:
    """Model, subset and health each begin with what the one before left."""
    fleet = Fleet(4)
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    fleet.settle(fleet.pick(subset={"10.0.0.12:8000"}), Ending.CONNECT_FAILURE)
    subset = {"10.0.0.11:8000", "10.0.0.12:8000", "10.0.1.1:8000"}
    reports = Filters((fleet.health,)).reports(request(), subset, fleet.registry.snapshot, fleet.now, random.Random(0))
    assert [(report.name, [endpoint.address for endpoint in report.left]) for report in reports[1:]] == [
        ("subset", ["10.0.0.11:8000", "10.0.0.12:8000"]),
        ("health", ["10.0.0.11:8000"]),
    ]
    assert list(map(str, reports)) == [
        "model: 4 of 5 match",
        "subset: 2 of 4 match",
        "health: 1 of 2 match",
    ]


def test_nothing_is_left_to_be_ill() -> None:
    """Where a filter left nothing, those after it have nothing to say."""
    fleet = Fleet(2)
    filters, asked = Filters((fleet.health,)), request(model="unknown")
    (report,) = filters.reports(asked, None, fleet.registry.snapshot, fleet.now, random.Random(0))
    assert (str(report), len(report.left)) == ("model: 0 of 2 match", 0)


class _Shut:
    """Lets nobody through."""

    name = "shut"
    special = ("something",)

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,
        now: float,
        generator: Generator,
    ) -> Sequence[Endpoint]:
        return ()


class _Open:
    """Lets everybody through."""

    name = "open"
    special = ()

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,
        now: float,
        generator: Generator,
    ) -> Sequence[Endpoint]:
        return candidates


def test_gates_are_asked_in_order_until_nobody_is_left() -> None:
    """The last report names the gate that let nobody through; those behind it are not asked."""
    fleet = Fleet(2)
    gates = (fleet.health, _Shut(), fleet.health)
    reports = Filters(gates).reports(request(), None, fleet.registry.snapshot, fleet.now, random.Random(0))
    assert [(report.name, report.before, report.after) for report in reports] == [
        ("model", 2, 2),
        ("health", 2, 2),
        ("shut", 2, 0),
    ]


def test_reports_follow_the_endpoints() -> None:
    """What was reported of candidates of whom nobody was removed does not outlive the snapshot they belong to."""
    fleet, filters = Fleet(2), Filters((_Open(),))
    snapshot = fleet.registry.snapshot
    before = filters.reports(request(), None, snapshot, fleet.now, random.Random(0))
    assert filters.reports(request(), None, snapshot, fleet.now, random.Random(0)) is before
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    after = filters.reports(request(), None, fleet.registry.snapshot, fleet.now, random.Random(0))
    assert [(str(report), len(report.left)) for report in after] == [
        ("model: 2 of 3 match", 2),
        ("open: 2 of 2 match", 2),
    ]


def test_nothing_is_kept_of_endpoints_that_were() -> None:
    """With each new snapshot the reports on candidates of the one before are let go."""
    fleet, filters = Fleet(2), Filters((_Open(),))
    before = filters.reports(request(), None, fleet.registry.snapshot, fleet.now, random.Random(0))[0].left
    held = sys.getrefcount(before)
    fleet.fill("q", "10.0.1.1:8000", models=frozenset({"other"}))
    filters.reports(request(), None, fleet.registry.snapshot, fleet.now, random.Random(0))
    # The registry has let the snapshot itself go, which counts for one at least; the reports count for two more.
    assert sys.getrefcount(before) <= held - 3


class _Watched:
    """Counts how often it is asked."""

    name = "watched"

    def __init__(self) -> None:
        self.special: tuple[list[int], ...] = ([],)
        self.asked = 0

    def admit(
        self,
        candidates: Sequence[Endpoint],
        request: InferenceRequest,
        now: float,
        generator: Generator,
    ) -> Sequence[Endpoint]:
        self.asked += 1
        return candidates


def test_a_gate_is_asked_only_while_it_keeps_something_special() -> None:
    """A healthy fleet pays for no gate, and is reported on all the same."""
    fleet, gate = Fleet(2), _Watched()
    filters = Filters((gate,))
    for asked in (0, 1):
        reports = filters.reports(request(), None, fleet.registry.snapshot, fleet.now, random.Random(0))
        assert [str(report) for report in reports] == ["model: 2 of 2 match", "watched: 2 of 2 match"]
        assert gate.asked == asked
        gate.special[0].append(1)


def test_a_gate_that_leaves_somebody_out_keeps_something_special() -> None:
    """Else nobody would ask it."""
    fleet = Fleet(2)
    endpoint, capacity = fleet.endpoints[0], CapacityGate(fleet.registry, fleet.ledger, fleet.expectations)
    gates: tuple[Gate, ...] = (fleet.lifecycle, fleet.sleepers, fleet.health, capacity)
    assert not any(kept for gate in gates for kept in gate.special)
    before = [gate.special for gate in gates]
    fleet.occupy(0, 1)
    fleet.lifecycle.cordon(endpoint)
    fleet.sleepers.asleep(endpoint, SleepLevel.PAUSED, Witness.METRICS, fleet.now)
    fleet.health.note(endpoint, Ending.CONNECT_FAILURE, fleet.now)
    capacity.configure({"p": Caps(requests=1)})
    for gate, special in zip(gates, before, strict=True):
        assert len(gate.admit(fleet.registry.snapshot.endpoints, request(), fleet.now, fleet.generator)) == 1
        assert any(special)
