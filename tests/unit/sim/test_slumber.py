"""The sleep mode of the simulated engine, as vLLM has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from ext_proc.core.sleepers import SleepLevel
from ext_proc.sim.engine import SimEngine
from ext_proc.sim.slumber import Slumber
from tests.unit.sim.conftest import StartEngine
from tests.unit.sources.pages import signals

Chat = Callable[..., dict[str, Any]]


async def order(http: aiohttp.ClientSession, engine: SimEngine, path: str) -> int:
    """Send it to sleep, or wake it."""
    async with http.post(engine.url + path) as answer:
        return answer.status


async def told(http: aiohttp.ClientSession, engine: SimEngine) -> tuple[bool, bool | None, str]:
    """Return what it answers, and what a reader of its metrics understands."""
    async with http.get(f"{engine.url}/is_sleeping") as answer:
        is_sleeping: bool = (await answer.json())["is_sleeping"]
    async with http.get(f"{engine.url}/metrics") as answer:
        read = signals(await answer.read())
    return is_sleeping, read.asleep, read.sleep_level


@pytest.mark.parametrize(
    ("level", "expected"),
    [("0", SleepLevel.PAUSED), ("1", SleepLevel.WEIGHTS_OFFLOADED), ("2", SleepLevel.DISCARD_ALL)],
)
async def test_it_says_that_it_sleeps(
    engine: SimEngine, http: aiohttp.ClientSession, level: str, expected: SleepLevel
) -> None:
    """By its own answer and by its metrics; after a wake call it is awake by both."""
    assert await told(http, engine) == (False, False, SleepLevel.UNKNOWN)
    assert await order(http, engine, f"/sleep?level={level}") == 200
    assert await told(http, engine) == (True, True, expected)
    assert await order(http, engine, "/wake_up") == 200
    assert await told(http, engine) == (False, False, SleepLevel.UNKNOWN)


async def test_a_part_that_woke_is_not_the_whole(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    """The metrics say awake from the first call on, and the answer asleep until the last part is awake."""
    await order(http, engine, "/sleep")
    await order(http, engine, "/wake_up?tags=weights")
    assert await told(http, engine) == (True, False, SleepLevel.UNKNOWN)
    await order(http, engine, "/wake_up?tags=kv_cache")
    assert (await told(http, engine))[0] is False


@pytest.mark.parametrize("speed", [float("inf"), 50.0])
async def test_requests_hang_until_it_wakes(
    start_engine: StartEngine, http: aiohttp.ClientSession, chat: Chat, speed: float
) -> None:
    """Also those that ran when it fell asleep; health and models answer meanwhile, and the cache is empty."""
    engine = await start_engine(speed=speed)
    url = f"{engine.url}/v1/chat/completions"
    async with http.post(url, json=chat()) as answer:
        assert answer.status == 200
    assert engine.scheduler.cache.cached > 0
    running = asyncio.create_task(http.post(url, json=chat(max_tokens=400, ignore_eos=True)))
    await asyncio.sleep(0.05)
    await order(http, engine, "/sleep")
    late = asyncio.create_task(http.post(url, json=chat()))
    done, _ = await asyncio.wait({late}, timeout=0.3)
    assert not done
    for path in ("/health", "/v1/models"):
        async with http.get(engine.url + path) as answer:
            assert answer.status == 200
    await order(http, engine, "/wake_up")
    for answer in await asyncio.gather(running, late):
        assert answer.status == 200
        assert (await answer.json())["choices"]
        answer.release()


async def test_what_it_cannot_do(start_engine: StartEngine, http: aiohttp.ClientSession) -> None:
    """No such level is 400, GET is 405, and an engine without sleep mode answers 404 and shows no metric."""
    engine = await start_engine()
    assert await order(http, engine, "/sleep?level=3") == 400
    async with http.get(f"{engine.url}/sleep") as answer:
        assert answer.status == 404
    engine = await start_engine(without=frozenset({"sleep-mode", "sleep-metric"}))
    for path in ("/sleep", "/wake_up"):
        assert await order(http, engine, path) == 404
    async with http.get(f"{engine.url}/is_sleeping") as answer:
        assert answer.status == 404
    async with http.get(f"{engine.url}/metrics") as answer:
        assert signals(await answer.read()).asleep is None


async def test_a_wait_for_the_end_ends_with_it() -> None:
    """Whoever waits goes on when all of it is awake."""
    slumber = Slumber()
    await slumber.over()
    slumber.sleep("1")
    waiting = asyncio.create_task(slumber.over())
    await asyncio.sleep(0)
    assert not waiting.done()
    slumber.wake(())
    await waiting
