"""The simulated engine's KV events, heard by the listener of the product."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from ext_proc.config import parse
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sim.engine import EngineOptions, SimEngine
from ext_proc.sources.kv_events import KvEventListener
from tests.waiting import until

MODEL, ADAPTER = "base", "legal"
SIZE = 16


class Wire:
    """A simulated engine, a listener, and what passes between them."""

    def __init__(self, engine: SimEngine, session: aiohttp.ClientSession) -> None:
        assert engine.kv_ports is not None
        port, replay = engine.kv_ports
        self.engine = engine
        self.session = session
        self.registry = Registry()
        self.registry.replace("p", [EndpointSpec(address=engine.address)])
        self.index = ResidentIndex()
        self.listener = KvEventListener(
            parse(f"pools: {{p: {{endpoints: ['10.0.0.1:80'], kv_events: {{port: {port}, replay_port: {replay}}}}}}}"),
            registry=self.registry,
            resident=self.index,
            is_busy=lambda _: False,
            listener=self,
            changed=lambda *_: None,
        )

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """All of them can be used."""
        assert (result in {"ok", "replayed"}, list(skipped)) == (True, [])

    def kv_recovery(self, result: str) -> None:
        """Nothing is lost for good."""
        assert result in {"replayed", "restart"}

    async def complete(self, prompt: str, **fields: Any) -> dict[str, Any]:
        """Let the engine complete a prompt; returns the usage."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields}
        async with self.session.post(f"{self.engine.url}/v1/completions", json=body) as answer:
            return dict((await answer.json())["usage"])

    async def held(self, prompt: str, adapter: str = "", salt: str = "") -> int | None:
        """Tokenize a prompt as the engine does, and ask the index for it."""
        async with self.session.post(f"{self.engine.url}/tokenize", json={"model": MODEL, "prompt": prompt}) as answer:
            ids = (await answer.json())["tokens"]
        return self.index.tokens_held(TokenHasher(SIZE).chain(ids, adapter, salt), [0])[0]


@asynccontextmanager
async def wired(**options: Any) -> AsyncIterator[Wire]:
    """Run an engine and the listener."""
    settings = {"models": (MODEL, ADAPTER), "block_size": SIZE, "kv_events": 0, **options}
    async with SimEngine(EngineOptions(**settings)) as engine, aiohttp.ClientSession() as session:
        wire = Wire(engine, session)
        task = asyncio.create_task(wire.listener.run())
        try:
            yield wire
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def text(number: int, blocks: int = 8) -> str:
    """Make a prompt of whole blocks that no other number shares."""
    return f"{number:04d}" * SIZE * blocks


async def settled(wire: Wire, first: int = 5000) -> None:
    """Wait until all that the engine has told so far is in the index; `first` is a prompt nobody has sent."""
    marks = itertools.count(first)

    async def is_heard() -> bool:
        mark = text(next(marks), 1)
        await wire.complete(mark)
        await asyncio.sleep(0.01)
        return bool(await wire.held(mark))

    await until(is_heard)


async def test_the_index_knows_what_the_engine_will_find() -> None:
    """What is predicted of a prompt is what the engine says it had cached, also of what came before we listened."""
    async with wired() as wire:
        await wire.complete(text(1))
        await settled(wire)
        for number in (2, 3):
            await wire.complete(text(number))
        await settled(wire)
        for prompt in (text(1) + "more", text(2)[:300], text(3) + text(4), text(5)):
            tokens = -(-len(prompt) // 4)
            predicted = min(await wire.held(prompt) or 0, (tokens - 1) // SIZE * SIZE)
            usage = await wire.complete(prompt)
            assert usage["prompt_tokens_details"]["cached_tokens"] == predicted
            assert predicted > 0 or prompt == text(5)


async def test_evicted_blocks_are_forgotten() -> None:
    """The index holds as many blocks as the engine, whatever has come and gone."""
    async with wired(kv_tokens=64 * SIZE) as wire:
        for number in range(30):
            await wire.complete(text(number))
        await settled(wire)
        assert wire.index.blocks(0) == wire.engine.scheduler.cache.cached
        assert await wire.held(text(0)) == 0


async def test_with_time_passing_blocks_are_told_as_they_are_computed() -> None:
    """An engine that takes its time tells the same in the end, blocks that it generated included."""
    async with wired(speed=1000.0) as wire:
        for number in range(3):
            await wire.complete(text(number), max_tokens=40, ignore_eos=True)
        await settled(wire)
        assert await wire.held(text(1)) == 8 * SIZE
        assert wire.index.blocks(0) == wire.engine.scheduler.cache.cached


async def test_adapters_and_salts_are_told() -> None:
    """Blocks of an adapter or of a salted prompt are held for those only."""
    async with wired() as wire:
        await wire.complete(text(1), model=ADAPTER)
        await wire.complete(text(2), cache_salt="tenant")
        await settled(wire)
        held = [await wire.held(text(1)), await wire.held(text(1), ADAPTER)]
        held += [await wire.held(text(2)), await wire.held(text(2), salt="tenant")]
        assert held == [0, 8 * SIZE, 0, 8 * SIZE]


async def test_a_reset_cache_is_told() -> None:
    """What the engine forgets is forgotten."""
    async with wired() as wire:
        await wire.complete(text(1))
        await settled(wire)
        async with wire.session.post(f"{wire.engine.url}/reset_prefix_cache"):
            pass
        await until(lambda: wire.index.blocks(0) == 0)


async def test_a_restarted_engine_begins_anew() -> None:
    """The same ports, an empty cache: with its first event all that the old process held is gone."""
    async with wired() as wire:
        for number in range(3):
            await wire.complete(text(number))
        await settled(wire)
        assert wire.engine.kv_ports is not None
        events, replay = wire.engine.kv_ports
        port = int(wire.engine.address.rpartition(":")[2])
        await wire.engine.__aexit__(None, None, None)
        options = EngineOptions(models=(MODEL, ADAPTER), block_size=SIZE, port=port, kv_events=events, kv_replay=replay)
        async with SimEngine(options):
            await settled(wire, 8000)
            assert await wire.held(text(1)) == 0
