"""The kvpickers of a simulation: what each view lets them know."""

from __future__ import annotations

from random import Random

import pytest

from ext_proc.core.model import Api, Decision, InferenceRequest, Operation
from ext_proc.core.pool import EndpointSpec
from ext_proc.replay.contestants import contestants
from ext_proc.replay.wiring import wire
from ext_proc.sim.fleet.conditions import Conditions, View
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.hasher import TraceHasher, packed
from ext_proc.sim.fleet.kvpickers import MODEL, Clock, Parts, Scrape, Site
from ext_proc.sim.fleet.presets import PRESETS

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000")
BLOCKS = (1, 2, 3, 4)


def made(view: View, strategy: str = "least-wait") -> Parts:
    """Make a kvpicker of two engines that hold nothing."""
    site = Site(
        instance="one",
        specs=tuple(EndpointSpec(address=address, models=frozenset({MODEL})) for address in ADDRESSES),
        hasher=TraceHasher(512),
        conditions=Conditions(view=view),
        engines=(Engine(PRESETS["h100-8b"], 512), Engine(PRESETS["h100-8b"], 512)),
        clock=Clock(),
    )
    (contestant,) = contestants(strategy, view)
    return wire(contestant, site)


def picked(parts: Parts, now: float = 0.0) -> Decision:
    """Let it pick an engine for a prompt of four blocks."""
    request = InferenceRequest(
        operation=Operation.CHAT, api=Api.OPENAI, model=MODEL, prompt=packed(BLOCKS), prompt_tokens=2100
    )
    decision = parts.picker.pick(request, now, Random(1))
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize("view", View)
def test_every_view_picks_with_the_strategy_that_was_asked_for(view: View) -> None:
    """Decisions are named after the kvpicker that made them."""
    decision = picked(made(view))
    assert (decision.strategy, decision.hit_tokens) == ("least-wait", 0)
    assert decision.id.startswith("one-")
    assert decision.chosen.address in ADDRESSES


def test_own_decisions_teach_the_observed_view() -> None:
    """The second request for a prompt is expected to find it where the first went."""
    parts = made(View.OBSERVED)
    first, second = picked(parts), picked(parts, 60.0)
    assert second.chosen == first.chosen
    assert second.hit_tokens == 4 * 512


def test_events_tell_what_engines_hold() -> None:
    """They go before what the own decisions would let one expect."""
    parts = made(View.EVENTS)
    assert parts.resident is not None
    slot = parts.registry.snapshot.by_address[ADDRESSES[1]].slot
    parts.resident.stored(slot, BLOCKS[:3])
    decision = picked(parts)
    assert (decision.chosen.address, decision.hit_tokens) == (ADDRESSES[1], 3 * 512)
    parts.resident.cleared(slot)
    assert picked(parts).hit_tokens == 0


def test_the_oracle_learns_nothing_from_itself() -> None:
    """The engines hold nothing, whatever was decided."""
    parts = made(View.ORACLE)
    assert [picked(parts).hit_tokens for _ in range(2)] == [0, 0]
    assert parts.resident is None


def test_who_looks_at_scrapes_gets_them() -> None:
    """An engine whose queue was seen is avoided by the strategy that goes by queues."""
    parts = made(View.OBSERVED, "gie")
    assert parts.scraped is not None
    first = picked(made(View.OBSERVED, "gie")).chosen.slot
    parts.scraped(first, Scrape(waiting=50, running=9, kv_usage=0.9, ttft_sum=0.0, ttft_count=0), 0.0)
    assert picked(parts).chosen.slot != first
