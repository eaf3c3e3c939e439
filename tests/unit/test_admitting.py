"""Caps, limits and patience, from the configuration to the core."""

from __future__ import annotations

import asyncio
import time

import pytest

from ext_proc import admitting
from ext_proc.assembly import build_core
from ext_proc.config import Config, parse
from ext_proc.core.observer import NoObserver
from ext_proc.core.waiting_room import Fill, Limits
from tests.waiting import until


def config(envoy: str = "{}", queue: str = "{}") -> Config:
    """Write a configuration of one pool."""
    return parse(f"envoy: {envoy}\npools: {{p: {{endpoints: ['10.0.0.11:8000'], models: [m], queue: {queue}}}}}")


@pytest.mark.parametrize(
    ("envoy", "wait", "extension"),
    [
        ("{}", 10.0, 1.0),
        ("{max_message_timeout_s: 5}", 4.0, 1.0),
        ("{max_message_timeout_s: 0}", 1.6, 0.0),
        ("{max_message_timeout_s: 0, message_timeout_s: 60}", 10.0, 0.0),
    ],
)
def test_nobody_waits_longer_than_envoy_does(envoy: str, wait: float, extension: float) -> None:
    """The usual wait is cut to what Envoy has the patience for, asked or not."""
    read = config(envoy)
    core = build_core(read, NoObserver())
    limits = core.admission.fills["p"].limits
    assert limits.wait == pytest.approx(wait)
    assert admitting.extension(read) == extension
    assert limits.models == {"m"}


def test_limits_are_those_of_the_pool() -> None:
    """Each by its name, and a reload changes them."""
    core = build_core(config(), NoObserver())
    bounds = "max_requests: 7, max_bytes: 70000, max_promises: 9, max_tenants: 5"
    queue = f"{{wait_s: 3, scale_from_zero_s: 40, wake_s: 8, {bounds}}}"
    admitting.configure(config(queue=queue), core.capacity, core.admission)
    assert core.admission.fills["p"].limits == Limits(
        requests=7,
        bytes=70_000,
        wait=3.0,
        from_zero=40.0,
        wake=8.0,
        proof=True,
        models=frozenset({"m"}),
        promises=9,
        tenants=5,
    )


def test_the_fullest_pool_counts() -> None:
    """A bound that allows nothing is never full."""
    limits = Limits(requests=10, bytes=1000, promises=0)
    fills = {"a": Fill(1, 500, 0, limits), "b": Fill(5, 100, 0, limits)}
    assert admitting.ratios(fills) == {"queue_requests": 0.5, "queue_bytes": 0.5, "promises": 0.0}


async def test_nobody_is_looked_after_while_nobody_waits() -> None:
    """The first who waits has it begin, and it ends with the last."""
    looks: list[float] = []

    class Room:
        waiting = 0
        on_wait = staticmethod(lambda: None)

        def __len__(self) -> int:
            return self.waiting

        def dispatch(self, now: float) -> None:
            looks.append(now)
            self.waiting -= 1

    room = Room()
    task = asyncio.create_task(admitting.look(room, time.monotonic, lambda _reason, _error: None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert looks == []
    room.waiting = 2
    room.on_wait()
    await until(lambda: room.waiting == 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(looks) == 2
    task.cancel()


async def test_a_look_that_fails_is_not_the_last() -> None:
    """The fault is told, and those who wait are looked after again."""
    looks: list[float] = []
    faults: list[str] = []

    class Broken:
        def __len__(self) -> int:
            return 1

        def dispatch(self, now: float) -> None:
            looks.append(now)
            raise RuntimeError("broken")

    task = asyncio.create_task(
        admitting.look(Broken(), time.monotonic, lambda reason, _error: faults.append(reason))  # type: ignore[arg-type]
    )
    await until(lambda: len(looks) > 1)
    task.cancel()
    assert set(faults) == {"admission"}
