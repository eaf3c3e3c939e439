"""Readiness begins when there is something to choose from, and its end is final."""

from __future__ import annotations

import asyncio

from ext_proc.readiness import Readiness
from ext_proc.wire.server import READINESS_NAMES, GrpcServer


class Blind:
    """A cluster that has not told of anything yet."""

    def __init__(self) -> None:
        self.seen = asyncio.Event()

    @property
    def is_blind(self) -> bool:
        """Whether it still has not."""
        return not self.seen.is_set()

    async def sighted(self) -> None:
        """Wait for it."""
        await self.seen.wait()


def shown(server: GrpcServer) -> set[bytes | None]:
    """Return what those who ask for readiness are told."""
    return {server._health._replies[name].message for name in READINESS_NAMES}


async def test_readiness_waits_and_ends() -> None:
    """Not ready with the reason, ready, and not ready again, for all names at once."""
    server, cluster = GrpcServer([], []), Blind()
    readiness = Readiness(server, cluster)  # type: ignore[arg-type]
    beginning = asyncio.create_task(readiness.begin())
    await asyncio.sleep(0)
    assert (readiness.is_ready, readiness.waits) == (False, True)
    assert readiness.obstacle == "the endpoints of no pool are known yet"
    cluster.seen.set()
    await beginning
    assert (readiness.is_ready, readiness.obstacle) == (True, None)
    ready = shown(server)
    assert len(ready) == 1
    await readiness.end()
    assert (readiness.is_ready, readiness.obstacle) == (False, "starting or stopping")
    assert shown(server).isdisjoint(ready)


async def test_an_end_before_the_beginning_is_final() -> None:
    """Whoever is told to stop while the cluster is silent does not become ready when it speaks."""
    cluster = Blind()
    readiness = Readiness(GrpcServer([], []), cluster)  # type: ignore[arg-type]
    beginning = asyncio.create_task(readiness.begin())
    await asyncio.sleep(0)
    await readiness.end()
    cluster.seen.set()
    await beginning
    assert (readiness.is_ready, readiness.obstacle) == (False, "starting or stopping")
