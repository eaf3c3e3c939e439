"""Whom a probe asks whether it sleeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from ext_proc.core.health_states import Verdict
from ext_proc.sources.probe import _Watch
from tests.unit.sources.serving import page, serving
from tests.unit.sources.test_probe import Probing, probing
from tests.waiting import until


def sleepy(told: bytes = b'{"is_sleeping":true}', status: int = 200) -> Any:
    """Answer well, and so at `/is_sleeping`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/is_sleeping":
            return web.Response(body=told, status=status)
        return web.Response()

    return answer


@pytest.mark.parametrize(
    ("engine", "believed", "asked"),
    [("vllm", None, True), ("vllm", True, True), ("vllm", False, False), ("sglang", None, False), ("", None, False)],
)
async def test_e17_only_who_may_sleep_unheard_is_asked(engine: str, believed: bool | None, asked: bool) -> None:
    """A vLLM whose metrics do not say, or that sleeps; nobody else."""
    async with serving() as server, probing(server.address, engine=engine) as made:
        server.answer, made.believed = sleepy(), believed
        made.asleep.clear()
        await until(lambda: len(made.asleep) >= 3)
        assert ("/is_sleeping" in server.asked, made.asleep[-1]) == (asked, True if asked else None)


async def test_e17_one_without_sleep_mode_is_asked_once() -> None:
    """Until it was away: then it may have been started in another way."""
    async with serving() as server, probing(server.address, engine="vllm") as made:
        server.answer, made.believed = sleepy(status=404), None
        await until(lambda: len(made.asleep) >= 4)
        assert server.asked.count("/is_sleeping") == 1
        server.answer = page(b"", 500)
        await until(lambda: Verdict.FAILED in made.verdicts)
        server.answer = sleepy()
        await until(lambda: made.asleep[-1] is True)


async def test_e17_who_is_in_doubt_is_asked_whatever_its_metrics_say() -> None:
    """They are read now and then; requests that fail may fail because it fell asleep meanwhile."""
    async with serving() as server, probing(server.address, engine="vllm") as made:
        server.answer = sleepy()
        await until(lambda: made.found["http_200"] >= 1)
        assert "/is_sleeping" not in server.asked
        made.prober.hurry(made.registry.snapshot.endpoints[0])
        await until(lambda: made.asleep[-1] is True)
        assert server.asked.count("/is_sleeping") == 1


@pytest.mark.parametrize(("told", "status"), [(b'{"is_sleeping":true}', 200), (b"", 404)])
async def test_e17_a_sleeper_generates_no_token(told: bytes, status: int) -> None:
    """It would hang; also where only its metrics say that it sleeps."""
    async with serving() as server:
        server.answer = sleepy(told, status)
        made = Probing(", generate: true", "vllm")
        made.believed = True
        made.list(server.address)
        task = asyncio.create_task(made.prober.run())
        await until(lambda: len(made.asleep) >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert set(server.asked) == {"/health", "/is_sleeping"}


def test_e17_a_sleeper_is_looked_after_often() -> None:
    """So that it is known soon when it wakes."""
    made = Probing()
    made.list("10.0.0.1:80")
    watch = _Watch(made.registry.snapshot.endpoints[0])
    watch.verdict, made.believed = Verdict.GOOD, True
    assert made.prober._pause(watch) == pytest.approx(0.1, rel=0.21)
