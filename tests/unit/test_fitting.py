"""What Envoy sends is counted, judged, and told once with the mend."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.core.ledger import Ledger
from ext_proc.core.misfits import MENDS, WINDOW_S, Misfit
from ext_proc.core.model import Ending
from ext_proc.fitting import Fitting
from ext_proc.log_watch import LogWatch
from ext_proc.ops import families
from ext_proc.ops.events import Event
from ext_proc.ops.metrics import Metrics
from tests.unit.core.builders import Fleet


class Made:
    """A watch over counts, and what it said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[tuple[Event, dict[str, Any]]] = []
        self.metrics = Metrics(frozenset)
        log_watch = LogWatch(Ledger(), 45.0, self.metrics.access_log_entry, lambda: self.now)
        self.fitting = Fitting(
            self.metrics, log_watch, lambda event, **fields: self.said.append((event, fields)), lambda: self.now
        )

    def count(self, family: families.Family, *labels: str, times: int = 10) -> None:
        """Count what the request path counts."""
        self.metrics.tallies[family].add(labels, times)

    def judge(self) -> list[str]:
        """Let a window pass; returns the misfits that are told."""
        self.now += WINDOW_S
        self.said.clear()
        self.fitting.look()
        return [fields["misfit"] for _, fields in self.said]


def test_bodies_that_do_not_come_are_told_with_the_mend() -> None:
    """As a warning that names the setting, and as a degraded state until they come."""
    made = Made()
    made.count(families.DECISIONS, "least-wait", "tie")
    made.count(families.UNHASHED, "body_not_sent")
    assert made.judge() == [Misfit.BODY_NOT_SENT]
    meaning, mend = MENDS[Misfit.BODY_NOT_SENT]
    assert made.said == [(Event.ENVOY_MISFIT, {"misfit": "body_not_sent", "meaning": meaning, "mend": mend})]
    assert [reason for reason, holds in made.fitting.degraded.items() if holds] == ["envoy_body_not_sent"]
    made.count(families.DECISIONS, "least-wait", "tie")
    assert made.judge() == []
    assert not any(made.fitting.degraded.values())


@pytest.mark.parametrize(
    ("family", "labels", "misfit"),
    [
        (families.PASSED, ("body_not_sent",), Misfit.BODY_NOT_SENT),
        (families.EXCHANGE_FAILURES, ("unexpected_request_body",), Misfit.HEADERS_NOT_SENT),
    ],
)
def test_what_is_not_picked_for_is_told(family: families.Family, labels: tuple[str, ...], misfit: Misfit) -> None:
    """Though there is no decision to see."""
    made = Made()
    made.count(family, *labels)
    assert made.judge() == [misfit]


def test_what_waits_to_be_counted_counts() -> None:
    """Thirty picks a window are many: five exchanges without headers are none of most."""
    made = Made()
    decision = Fleet(1).pick()
    for _ in range(30):
        made.metrics.decided(decision, 0.0001)
    made.count(families.EXCHANGE_FAILURES, "unexpected_request_body", times=5)
    assert made.judge() == []


def test_engines_that_were_not_picked_are_told() -> None:
    """When no attempt failed before; requests that are lost say nothing."""
    made = Made()
    made.count(families.REQUESTS, "m", "chat", Ending.OK)
    made.count(families.REQUESTS, "m", "chat", Ending.LOST, times=90)
    made.count(families.ATTEMPTS)
    made.count(families.FALLBACKS, times=5)
    assert made.judge() == [Misfit.PICK_NOT_OBEYED]


def test_an_access_log_without_decisions_is_told() -> None:
    """Entries that speak of another kvpicker's decisions are such, too."""
    made = Made()
    for _ in range(3):
        made.count(families.DECISIONS, "least-wait", "tie")
        made.count(families.ACCESS_LOG_ENTRIES, "undecided")
        told = made.judge()
    assert told == [Misfit.DECISION_NOT_LOGGED]
    made.count(families.ACCESS_LOG_ENTRIES, "foreign", times=1)
    assert made.judge() == []
    assert not any(made.fitting.degraded.values())
