"""The measurement of added latency."""

from __future__ import annotations

import pytest

from ext_proc.local.latency import LatencyError, added_ms_p50
from ext_proc.local.stack import PROBE
from ext_proc.sim.engine import EngineOptions, SimEngine


async def test_the_difference_of_the_medians_is_reported() -> None:
    """A way that is 5.8 ms slower is measured as such, and the other way round with the other sign."""
    fast, slow = EngineOptions(models=(PROBE,)), EngineOptions(models=(PROBE,), speed=1)
    async with SimEngine(fast) as near, SimEngine(slow) as far:
        added = await added_ms_p50(far.url, near.url, pairs=20, warm_up=2)
        saved = await added_ms_p50(near.url, far.url, pairs=20, warm_up=2)
    assert 4 < added < 15
    assert -15 < saved < -4


async def test_every_request_must_be_answered() -> None:
    """A median over failures would mean nothing."""
    async with SimEngine(EngineOptions(models=("another",))) as engine:
        with pytest.raises(LatencyError, match="status 404"):
            await added_ms_p50(engine.url, engine.url, pairs=1, warm_up=0)


async def test_an_unreachable_way_is_named() -> None:
    """The error holds the URL."""
    with pytest.raises(LatencyError, match=r"http://127\.0\.0\.1:1"):
        await added_ms_p50("http://127.0.0.1:1", "http://127.0.0.1:1", pairs=1, warm_up=0)
