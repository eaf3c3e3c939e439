"""What is known of endpoints, gathered."""

from __future__ import annotations

import pytest

from ext_proc.assembly import build_core
from ext_proc.config import parse
from ext_proc.core.model import Decision
from ext_proc.core.observer import NoObserver
from ext_proc.core.signals import EngineSignals, Times
from ext_proc.statuses import pace
from tests.unit.core.builders import Fleet


@pytest.fixture
def decision() -> Decision:
    """A decision of another fleet, since only its model counts."""
    return Fleet(1).pick()


def test_the_pace_is_what_the_engine_says(decision: Decision) -> None:
    """The mean time between two tokens counts where it is known; else the usual stay is divided by the usual length."""
    config = parse("pools: {p: {endpoints: ['10.0.0.11:8000', '10.0.0.12:8000'], models: [acme/chat-8b]}}")
    core = build_core(config, NoObserver())
    core.follow(core.registry.replace("p", config.pools["p"].specs))
    first, second = core.registry.snapshot.endpoints
    expected = core.expectations.of(decision.request.model)
    usual = expected.residence / expected.output
    for at, tokens in ((1.0, 100.0), (2.0, 300.0)):
        core.signals.note(first.slot, EngineSignals(at=at, itl=Times(tokens / 40, tokens)))
        core.signals.note(second.slot, EngineSignals(at=at, itl=Times(1.0, 100.0)))
    assert pace(core, decision, first.address) == pytest.approx(0.025)
    assert usual != pytest.approx(0.025)
    assert pace(core, decision, second.address) == pace(core, decision, "10.9.9.9:1") == pytest.approx(usual)
