"""kvpicker is killed while requests wait for their first token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.pieces import CHAT, Engine, running_engine, token
from tests.wire.test_outage import Outage

pytestmark = pytest.mark.envoy

LATE = ((2.0, token("Elbe")), (0.1, token("Po")))
RUNNING = ((0.0, token("Elbe")), (2.0, token("Po")))
REQUESTS: dict[str, dict[str, Any]] = {
    "no headers": {"pieces": LATE, "late": True},
    "no token": {"pieces": LATE},
    "running": {"pieces": RUNNING},
    "whole answer": {"pieces": LATE, "stream": False},
}


@contextlib.asynccontextmanager
async def gateway(folder: Path, mode: Any) -> AsyncIterator[tuple[Outage, Engine, str]]:
    """Run Envoy, showing answers, and a kvpicker that may die, in front of a scripted engine."""
    running = Outage(folder)
    async with running_engine() as engine, contextlib.AsyncExitStack() as exits:
        running.configure([engine.address])
        exits.push_async_callback(running.kill)
        await running.start()
        options = EnvoyOptions(
            envoy_version=found_version(),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            processors=(f"unix:{running.socket}",),
            endpoints_file=str(running.eds),
            failure_mode=mode,
            first_token=True,
        )
        envoy = await exits.enter_async_context(EnvoyProcess(to_yaml(options), find_envoy(), concurrency=1))
        yield running, engine, f"http://127.0.0.1:{await envoy.port()}/v1/chat/completions"


async def outlive(
    session: aiohttp.ClientSession, url: str, wanted: dict[str, Any], begun: asyncio.Event
) -> tuple[int, bool]:
    """Send a request and tell when its answer begins; returns the status and whether the whole answer came."""
    async with session.post(url, json={**CHAT, **wanted}) as answer:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            first = await answer.content.readany()
            begun.set()
            text = (first + await answer.read()).decode()
            return answer.status, text == "".join(piece for _, piece in wanted["pieces"])
        return answer.status, False


async def kill(running: Outage, engine: Engine, url: str) -> dict[str, tuple[int, bool]]:
    """Kill kvpicker when every request is with the engine; returns what became of them."""
    begun = {name: asyncio.Event() for name in REQUESTS}
    async with aiohttp.ClientSession() as session:
        sent = {
            name: asyncio.ensure_future(outlive(session, url, wanted, begun[name])) for name, wanted in REQUESTS.items()
        }
        await until(lambda: engine.begun == len(REQUESTS))
        await begun["running"].wait()
        assert not any(answer.done() for answer in sent.values())
        await running.kill()
        return {name: await answer for name, answer in sent.items()}


async def test_open_mode_loses_no_waiting_request(tmp_path: Path) -> None:
    """Failing open, every request goes on to its end."""
    async with gateway(tmp_path, "open") as running:
        assert set((await kill(*running)).values()) == {(200, True)}


async def test_closed_mode_costs_the_streams_that_wait(tmp_path: Path) -> None:
    """Failing closed, a waiting stream is refused, or cut if its headers are out; all else goes on."""
    async with gateway(tmp_path, "closed") as running:
        assert await kill(*running) == {
            "no headers": (503, False),
            "no token": (200, False),
            "running": (200, True),
            "whole answer": (200, True),
        }
