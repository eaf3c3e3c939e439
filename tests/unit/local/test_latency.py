"""The measurement of added latency."""

from __future__ import annotations

from itertools import cycle

import pytest
from aiohttp import web

from ext_proc.local.latency import LatencyError, added_ms_p50
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.unit.sources.serving import Answer, serving


class Clock:
    """Time that passes only while a server answers."""

    def __init__(self) -> None:
        self.now = 0.0

    def taking(self, *milliseconds: float) -> Answer:
        """Make answers that take so long, in turn."""
        times = cycle(milliseconds)

        async def answer(_: web.Request) -> web.StreamResponse:
            self.now += next(times) / 1e3
            return web.Response(body=b"{}")

        return answer


async def test_the_difference_of_the_medians_is_reported() -> None:
    """One odd request in three is no matter, nor is the machine; the other way round the sign is the other."""
    clock = Clock()
    async with serving() as near, serving() as far:
        near.answer, far.answer = clock.taking(1.0, 90.0, 1.0), clock.taking(6.5, 1.0, 6.5)
        ways = f"http://{far.address}", f"http://{near.address}"
        added = await added_ms_p50(*ways, pairs=9, warm_up=3, clock=lambda: clock.now)
        saved = await added_ms_p50(*ways[::-1], pairs=9, warm_up=3, clock=lambda: clock.now)
    assert (added, saved) == (pytest.approx(5.5), pytest.approx(-5.5))
    assert len(near.asked) == len(far.asked) == 24


async def test_what_is_sent_before_does_not_count() -> None:
    """The first requests open connections."""
    clock = Clock()
    async with serving() as near, serving() as far:
        near.answer, far.answer = clock.taking(1.0), clock.taking(500.0, 500.0, 4.0, 4.0, 4.0)
        url, direct = f"http://{far.address}", f"http://{near.address}"
        assert await added_ms_p50(url, direct, pairs=3, warm_up=2, clock=lambda: clock.now) == pytest.approx(3.0)


async def test_every_request_must_be_answered() -> None:
    """A median over failures would mean nothing."""
    async with SimEngine(EngineOptions(models=("another",))) as engine:
        with pytest.raises(LatencyError, match="status 404"):
            await added_ms_p50(engine.url, engine.url, pairs=1, warm_up=0)


async def test_an_unreachable_way_is_named() -> None:
    """The error holds the URL."""
    with pytest.raises(LatencyError, match=r"http://127\.0\.0\.1:1"):
        await added_ms_p50("http://127.0.0.1:1", "http://127.0.0.1:1", pairs=1, warm_up=0)
