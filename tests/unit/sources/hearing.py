"""A listener to KV events of one engine, and what it heard."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from ext_proc.config import parse
from ext_proc.core.kv_state import PublisherState
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sources.kv_events import KvEventListener
from tests.unit.sources.publishing import Publisher
from tests.waiting import until

SIZE = 4


def tokens(number: int) -> list[int]:
    """Make the tokens of a block."""
    return [number] * SIZE


def stored(*numbers: int, parent: int | None = None) -> dict[str, Any]:
    """Make an event about blocks that are named by their token."""
    ids = [token for number in numbers for token in tokens(number)]
    return {
        "type": "BlockStored", "block_hashes": list(numbers), "parent_block_hash": parent, "token_ids": ids,
        "block_size": SIZE, "medium": "GPU",
    }  # fmt: skip


def removed(*numbers: int) -> dict[str, Any]:
    """Make the event that blocks are gone."""
    return {"type": "BlockRemoved", "block_hashes": list(numbers), "medium": "GPU"}


class Listening:
    """A registry with one engine, the index, and notes of what was heard."""

    def __init__(self, settings: str, address: str = "127.0.0.1:8000") -> None:
        self.registry = Registry()
        self.index = ResidentIndex()
        self.results: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.problems: list[str] = []
        self.busy: set[int] = set()
        self.registry.replace("p", [EndpointSpec(address=address)])
        self.listener = KvEventListener(
            self.config(settings),
            registry=self.registry,
            resident=self.index,
            is_busy=self.busy.__contains__,
            listener=self,
            changed=lambda _, problem: self.problems.append(problem),
        )

    @staticmethod
    def config(settings: str) -> Any:
        """Make a configuration of one pool."""
        return parse(f"pools: {{p: {{endpoints: ['10.0.0.1:80'], kv_events: {{{settings}}}}}}}")

    @property
    def endpoint(self) -> Endpoint:
        """The engine."""
        return self.registry.snapshot.endpoints[0]

    def kv_messages(self, result: str, skipped: Iterable[str]) -> None:
        """Count it."""
        self.results[result] += 1
        self.skipped.update(skipped)

    def kv_recovery(self, result: str) -> None:
        """Count it."""
        self.recoveries[result] += 1

    def states(self) -> tuple[PublisherState, ...]:
        """Ask how listening goes."""
        return self.listener.states(self.endpoint, time.monotonic())

    def held(self, *numbers: int) -> int | None:
        """Ask for a prompt of blocks."""
        chain = TokenHasher(SIZE).chain([token for number in numbers for token in tokens(number)])
        return self.index.tokens_held(chain, [self.endpoint.slot])[0]


@asynccontextmanager
async def listening(publisher: Publisher, settings: str = "", *, replay: bool = True) -> AsyncIterator[Listening]:
    """Listen to a publisher, which is heard once the block is entered: it publishes block 0."""
    ports = f"port: {publisher.port}" + (f", replay_port: {publisher.replay_port}" if replay else "")
    heard = Listening(f"{ports}{settings}")
    async with running(heard):
        yield heard


@asynccontextmanager
async def running(heard: Listening) -> AsyncIterator[None]:
    """Run the listener."""
    task = asyncio.create_task(heard.listener.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def joined(publisher: Publisher, heard: Listening) -> None:
    """Publish until it is heard: who connects misses what was published before."""

    async def is_heard() -> bool:
        await publisher.publish(stored(0))
        await asyncio.sleep(0)
        return heard.held(0) == SIZE and not heard.listener.is_degraded

    await until(is_heard)
