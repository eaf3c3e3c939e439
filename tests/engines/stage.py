"""kvpicker and a real Envoy in front of real engines, with a tap before each of them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.engines.conversations import PATH, Answer, Conversation, Plan, ask, body
from benchmarks.engines.vllm_engine import MODEL, VllmEngine
from ext_proc.app import Service
from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.config import load
from ext_proc.core.model import Decision, IndexMode, Outcome
from ext_proc.core.names import RANK
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.engines.tap import Tap
from tests.waiting import until

ADAPTER = "real-legal"  # a salt may be called so too
DEADLINE_S = 120.0

EXACT = 0.95
"""Share of the requests in token mode whose cached tokens must be predicted to the token."""


class Stage:
    """What a test of real engines talks to."""

    def __init__(self, engines: Sequence[VllmEngine]) -> None:
        self.engines = engines
        self.taps: list[Tap] = []
        self.sent: list[str] = []
        self.url = ""
        self.service: Service
        self.envoy: EnvoyProcess
        self.session: aiohttp.ClientSession

    @property
    def resident(self) -> ResidentIndex:
        """What kvpicker believes the engines hold."""
        return self.service._core.resident

    def slot(self, number: int) -> int:
        """Return the slot of an engine."""
        return self.service._core.registry.snapshot.by_address[self.taps[number].address].slot

    def blocks(self, number: int) -> int:
        """Return how many blocks kvpicker believes an engine to hold."""
        return self.resident.blocks(self.slot(number))

    async def ask(self, data: bytes) -> Answer:
        """Send a request through Envoy; it must be answered."""
        self.sent.append(hashlib.sha256(data).hexdigest())
        answer = await ask(self.session, self.url, data)
        assert not answer.problem
        return answer

    async def ask_engine(self, number: int, data: bytes, rank: int | None = None) -> Answer:
        """Send a request to an engine, perhaps to one of its ranks, past Envoy and kvpicker."""
        named = None if rank is None else {RANK: str(rank)}
        answer = await ask(self.session, self.engines[number].url, data, named)
        assert not answer.problem
        return answer

    async def joined(self, count: int) -> list[tuple[Decision, Outcome]]:
        """Wait until so many decisions have their outcomes, and return the latest in the order they were made."""
        ring = self.service._ring
        before = [name for name in ring._decisions if name not in ring._outcomes]
        await until(lambda: all(name in ring._outcomes for name in before), DEADLINE_S)
        names = list(ring._decisions)[-count:]
        return [(ring._decisions[name], ring._outcomes[name]) for name in names]

    async def explained(self, data: bytes) -> dict[str, int]:
        """Ask kvpicker where it would send a request; returns the cached tokens it expects at each engine."""
        url = f"http://{self.service.admin_address}/debug/explain?path={PATH}"
        async with self.session.post(url, data=data) as answer:
            told = await answer.json()
        assert told["predicted_by"] == IndexMode.TOKEN, told
        return {one["endpoint"]: one["hit_tokens"] for one in told["candidates"]}

    async def page(self, path: str) -> Any:
        """Return a page of kvpicker's admin server."""
        async with self.session.get(f"http://{self.service.admin_address}{path}") as answer:
            return await (answer.json() if path.startswith("/debug") else answer.text())

    async def empty(self) -> None:
        """Empty the engines' caches, and wait until kvpicker has heard of it; they tell with their next step."""
        for number, engine in enumerate(self.engines):
            await engine.reset(self.session)
            for rank in range(engine.ranks):
                await self.ask_engine(number, chat("Say one word. " * 20), rank if engine.ranks > 1 else None)
        await self.settled()

    async def settled(self) -> None:
        """Wait until every message of the engines has been read and is believed."""
        slots = [self.slot(number) for number in range(len(self.engines))]
        await until(lambda: all(slot in self.resident for slot in slots), DEADLINE_S)
        feeds = [feed for slot in slots for feed in self.resident._reporters[slot].feeds]
        before = None
        while before != (before := [feed._next for feed in feeds]):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.3)


def chat(text: str, *, system: str = "", model: str = MODEL, tokens: int = 1, **members: Any) -> bytes:
    """Write a request of one user message."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    asked = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps({**asked, **members}).encode()


async def hold_all(stage: Stage, plan: Plan, seed: str) -> None:
    """Hold the conversations of a plan, a few at a time."""
    turns = asyncio.Semaphore(plan.at_once)
    async with asyncio.TaskGroup() as tasks:
        for number in range(plan.sessions):
            tasks.create_task(_hold(stage, plan, Conversation(plan, seed, number), turns))


async def _hold(stage: Stage, plan: Plan, conversation: Conversation, turns: asyncio.Semaphore) -> None:
    """Hold a conversation whose history is what the engines really answered."""
    answers: list[str] = []
    for turn, think in enumerate(conversation.thinks):
        data = body(MODEL, conversation.messages(turn, answers), plan.tokens)
        async with turns:
            answers.append((await stage.ask(data)).text)
        await asyncio.sleep(think)


@asynccontextmanager
async def running_stage(folder: Path, engines: Sequence[VllmEngine], tokens: Mapping[str, Any]) -> AsyncIterator[Stage]:
    """Put taps, kvpicker and Envoy before engines that run already.

    Args:
        folder: where the files of the run live.
        engines: the engines.
        tokens: the pool's setting of that name.
    """
    stage = Stage(engines)
    async with AsyncExitStack() as exits:
        for engine in engines:
            stage.taps.append(await exits.enter_async_context(Tap(engine.url).running()))
        listed = [{**engine.settings, "address": tap.address} for engine, tap in zip(engines, stage.taps, strict=True)]
        ranks = engines[0].ranks
        events = {"port": 1, "ranks": ranks, "pin_rank": ranks > 1}
        pool = {"endpoints": listed, "kv_events": events, "tokens": dict(tokens)}
        eds = folder / "eds.json"
        config = {
            "listen": ["127.0.0.1:0"],
            "admin": {"listen": "127.0.0.1:0"},
            "drain_s": 0,
            "envoy": {"endpoints_file": str(eds)},
            "pools": {"engines": pool},
            "log": {"level": "warning"},
        }
        file = folder / "kvpicker.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        stage.service = await exits.enter_async_context(Service(load(file), file, io.BytesIO()))
        rendered = to_yaml(
            EnvoyOptions(
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                processors=stage.service.grpc_addresses,
                endpoints_file=str(eds),
                failure_mode="closed",
                message_timeout=5.0,
            )
        )
        stage.envoy = await exits.enter_async_context(EnvoyProcess(rendered, find_envoy(), concurrency=1))
        stage.url = f"http://127.0.0.1:{await stage.envoy.port()}"
        stage.session = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        await until(lambda: stage.service._core.registry.snapshot.models >= {MODEL}, DEADLINE_S)
        await stage.empty()
        yield stage
        stats = await stage.envoy.stats("http.")
        bad = ("spurious_msgs_received", "rejected_header_mutations", "message_timeouts")
        assert {name: value for name, value in stats.items() if name.endswith(bad) and value} == {}
