"""The watch of the fault suite tells when an engine is avoided and when it is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_proc.local.lifeline import Lifeline
from tests.fault.envoy import Envoy, HostCounts
from tests.fault.watch import Sample, Watch


@pytest.fixture
def watch() -> Watch:
    """Two engines of which each gets 10 requests a second, but the first none from second 3 to second 6."""
    made = Watch(Envoy(Path(), Path(), Lifeline()))
    for tenth in range(100):
        lost = min(max(tenth - 30, 0), 30)
        first = HostCounts(tenth - lost, max(min(tenth, 30) - 20, 0))
        made.samples.append(Sample(tenth / 10, {"a": first, "b": HostCounts(tenth + lost, 0)}))
    return made


def test_it_sees_the_first_failure(watch: Watch) -> None:
    """Failures begin to grow after second 2, and not at the other engine."""
    assert watch.first_failure("a", 1.0) == pytest.approx(2.1)
    assert watch.first_failure("b", 1.0) is None


def test_it_sees_when_an_engine_is_avoided_and_trusted_again(watch: Watch) -> None:
    """Both count from the moment that is asked for, and a window must be over before it counts."""
    assert watch.avoided("a", 2.1, 9.0) == pytest.approx(0.7, abs=0.15)
    assert watch.avoided("b", 2.1, 9.0) is None
    assert watch.trusted("a", 4.0, 9.0) == pytest.approx(1.2, abs=0.15)
    assert watch.avoided("a", 2.1, 3.0) is None
