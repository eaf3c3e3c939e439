"""Filters: what each leaves, and how that is counted."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from ext_proc.core.filters import Filters
from ext_proc.core.generator import Generator
from ext_proc.core.model import Ending, Endpoint, InferenceRequest
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
