"""Tests of watching endpoints in line with the registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.snapshot import Snapshot
from ext_proc.sources.watches import NOTICE_S, Watches
from tests.waiting import until


class Watched(NamedTuple):
    """One watch."""

    endpoint: Endpoint
    tasks: tuple[asyncio.Task[None], ...]


class Source:
    """What watches endpoints, and what happened to it, in order."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.watches: Watches[Endpoint, Watched] = Watches(self.registry, self._wanted, self._goes_on, self._ended)
        self.label = "kind"
        self.happened: list[str] = []
        self.looks = 0
        self.pause: float | None = None

    def list(self, *addresses: str, **labels: str) -> None:
        """Make these the endpoints."""
        self.registry.replace("main", [EndpointSpec(address=address, labels=labels) for address in addresses])

    def _wanted(self, snapshot: Snapshot) -> dict[int, Endpoint]:
        return {endpoint.generation: endpoint for endpoint in snapshot.endpoints}

    def _goes_on(self, watch: Watched, endpoint: Endpoint) -> bool:
        return watch.endpoint.labels.get(self.label) == endpoint.labels.get(self.label)

    def _ended(self, watch: Watched) -> None:
        self.happened.append(f"-{watch.endpoint.address}")

    def begin(self, endpoint: Endpoint) -> Watched:
        """Begin a watch."""
        self.happened.append(f"+{endpoint.address}")
        return Watched(endpoint, (asyncio.create_task(asyncio.sleep(3600)),))

    def tend(self) -> float | None:
        """Count the looks."""
        self.looks += 1
        return self.pause


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    """Run a source of one endpoint."""
    made = Source()
    made.list("192.0.2.1:1")
    task = asyncio.create_task(made.watches.run(made.begin, made.tend))
    await until(lambda: made.happened == ["+192.0.2.1:1"])
    made.happened.clear()
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_goes_goes_before_anybody_comes(source: Source) -> None:
    """A slot may be given out anew at once, and only what differs is begun or ended."""
    source.list("192.0.2.2:1", "192.0.2.3:1")
    await until(lambda: len(source.happened) == 3)
    assert source.happened == ["-192.0.2.1:1", "+192.0.2.2:1", "+192.0.2.3:1"]
    source.list("192.0.2.3:1")
    await until(lambda: len(source.happened) == 4)
    assert source.happened[3:] == ["-192.0.2.2:1"]
    assert len(source.watches) == 1


async def test_a_watch_that_cannot_go_on_is_begun_anew(source: Source) -> None:
    """Whether it can is asked after changes, and when settings change."""
    (endpoint,) = source.registry.snapshot.endpoints
    source.list("192.0.2.1:1", other="b")
    before = source.looks
    await until(lambda: source.looks > before)
    assert source.happened == []
    source.list("192.0.2.1:1", kind="b", other="b")
    await until(lambda: len(source.happened) == 2)
    before_anew = source.watches.of(endpoint)
    source.label = "other"
    source.watches.reconsider()
    looks = source.looks
    await until(lambda: source.looks > looks)
    assert source.watches.of(endpoint) is before_anew


async def test_nothing_is_looked_at_while_nothing_changes(source: Source) -> None:
    """A change after quiet is followed at once, further ones together; an idle process sleeps."""
    await asyncio.sleep(3 * NOTICE_S)
    looks = source.looks
    assert looks == 1
    source.list("192.0.2.2:1")
    for _ in range(5):
        await asyncio.sleep(0)
    assert source.happened == ["-192.0.2.1:1", "+192.0.2.2:1"]
    for number in range(20):
        source.list(f"192.0.2.{number + 3}:1")
        await asyncio.sleep(0)
    assert source.looks == 2
    await until(lambda: source.happened[-1] == "+192.0.2.22:1")
    assert len(source.happened) == 4


async def test_looks_come_as_often_as_is_asked(source: Source) -> None:
    """Without any change too."""
    source.pause = NOTICE_S
    source.watches.reconsider()
    began, looks = time.monotonic(), source.looks
    await until(lambda: source.looks >= looks + 3)
    assert time.monotonic() - began >= 2 * NOTICE_S - 0.02


async def test_the_end_ends_all_watches() -> None:
    """No task is left, and the registry tells nobody any more."""
    made = Source()
    made.list("192.0.2.1:1", "192.0.2.2:1")
    task = asyncio.create_task(made.watches.run(made.begin))
    await until(lambda: len(made.watches) == 2)
    tasks = [each for watch in made.watches.values() for each in watch.tasks]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(each.cancelled() for each in tasks)
    assert len(made.watches) == 0
    assert sorted(made.happened[2:]) == ["-192.0.2.1:1", "-192.0.2.2:1"]
    assert made.registry._listeners == []
