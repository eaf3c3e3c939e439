"""Runs mixed load over many endpoints that come, go and fail, and fails if kvpicker grows or keeps anything."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import aiohttp
import msgspec

from ext_proc.local.child import Child
from ext_proc.local.lifeline import Lifeline
from tests.fault.ledger import ClientLedger
from tests.fault.load import Traffic
from tests.fault.stand import LEASE_S, Plan, Stand
from tests.waiting import until

ENDPOINTS = 100
PROCESSES = 2
RATE = 30.0
STREAMS = 40
CHURN_S = 3.0
SAMPLE_S = 5.0
WARM_UP_S = 300.0
GROWTH = 0.05
"""Share by which memory may grow after the warm-up."""

SLACK = 8
"""Tasks and descriptors that may be open for a moment when they are counted: answers of the admin page itself."""

LOOKS = 20
LOOK_S = 0.25
"""What is counted at rest is the least of some looks: readings of metrics and probes come and go."""

FAULTS = (
    {"kind": "error_500", "count": 5},
    {"kind": "reset_before_headers", "count": 5},
    {"kind": "reset_mid_stream", "after": 3, "count": 3},
    {"kind": "busy_503", "count": 5},
    {"kind": "refuse", "for": 2.0},
)


class Sample(msgspec.Struct, frozen=True):
    """What kvpicker holds at a moment."""

    at: float
    memory: float
    descriptors: float
    tasks: float
    leases: float


class Soak:
    """One run."""

    def __init__(self, stand: Stand, addresses: Sequence[str], seed: int = 0) -> None:
        self._stand = stand
        self._addresses = addresses
        self._generator = random.Random(seed)
        self.samples: list[Sample] = []
        self.ledger = ClientLedger()
        self.traffic = Traffic(stand.envoy.url, stand.session, self.ledger, rate=RATE, streams=STREAMS, name="soak")

    async def sample(self) -> Sample:
        """Ask kvpicker what it holds."""
        names = ("process_resident_memory_bytes", "process_open_fds", "kvpicker_tasks", "kvpicker_leases")
        return Sample(time.monotonic(), *await self._stand.kvpickers[0].metrics(*names))

    async def rest(self) -> Sample:
        """Ask several times what it holds, and return the least."""
        found = []
        for _ in range(LOOKS):
            found.append(await self.sample())
            await asyncio.sleep(LOOK_S)
        least = {name: min(getattr(one, name) for one in found) for name in ("descriptors", "tasks", "leases")}
        return msgspec.structs.replace(found[-1], **least)

    async def run(self, seconds: float) -> None:
        """Send, churn and sample."""
        end = time.monotonic() + seconds
        async with self.traffic.running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._churn(end))
            tasks.create_task(self._leave(end))
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):  # of a machine that is busy elsewhere
                    self.samples.append(await self.sample())
                await asyncio.sleep(SAMPLE_S)
        self._stand.list_addresses(self._addresses)

    async def _churn(self, end: float) -> None:
        """Take some endpoints out, put others back, and let one fail."""
        while time.monotonic() < end:
            out = set(self._generator.sample(self._addresses, self._generator.randrange(0, ENDPOINTS // 4)))
            self._stand.list_addresses([address for address in self._addresses if address not in out])
            fault = self._generator.choice(FAULTS)
            url = f"http://{self._generator.choice(self._addresses)}/sim/faults"
            with contextlib.suppress(aiohttp.ClientError):
                async with self._stand.session.post(url, json=fault):
                    pass
            await asyncio.sleep(CHURN_S)

    async def _leave(self, end: float) -> None:
        """Have a client go away in mid-stream, again and again."""
        while time.monotonic() < end:
            await self.traffic.stream(60, leave_after=2)
            await asyncio.sleep(0.2)


async def soak(minutes: float) -> dict[str, object]:
    """Run it and say what grew."""
    async with AsyncExitStack() as exits:
        lifeline = await exits.enter_async_context(Lifeline())
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        farms = [
            Child(f"farm-{number}", lifeline, sys.executable, "-m", "tests.fault.farm", each, announces="addresses")
            for number, each in enumerate([str(ENDPOINTS // PROCESSES)] * PROCESSES)
        ]
        for farm in farms:
            await exits.enter_async_context(farm)
        addresses = [address for farm in farms for address in (await farm.announcement())["addresses"]]
        # The index is to be full before memory is compared: what it may hold is no leak.
        plan = Plan(engines=0, settings={"index": {"max_blocks": 20_000}})
        stand = Stand(lifeline, plan, session)
        stand.list_addresses(addresses)
        exits.push_async_callback(stand.stop)
        await stand.start()
        await until(lambda: _known(stand, len(addresses)))
        run = Soak(stand, addresses)
        before = await run.rest()
        await run.run(minutes * 60)
        await until(lambda: _rests(run), LEASE_S + 20)
        return judge(run, before, await run.rest(), minutes * 60)


async def _known(stand: Stand, count: int) -> bool:
    return len(await stand.kvpickers[0].states()) == count


async def _rests(run: Soak) -> bool:
    return (await run.sample()).leases == 0


def judge(run: Soak, before: Sample, after: Sample, seconds: float) -> dict[str, object]:
    """Compare what kvpicker held."""
    begun = run.samples[0].at
    warm_up = min(WARM_UP_S, seconds / 4)
    warm = [sample for sample in run.samples if sample.at >= begun + warm_up]
    share = max(len(warm) // 5, 1)
    first, last = (statistics.median(one.memory for one in part) for part in (warm[:share], warm[-share:]))
    account = run.ledger.settle((), "")
    broken = []
    if last > first * (1 + GROWTH):
        broken.append(f"memory grew by {last / first - 1:.1%}")
    if after.descriptors > before.descriptors + SLACK:
        broken.append(f"{after.descriptors - before.descriptors:g} file descriptors leaked")
    if after.tasks > before.tasks + SLACK:
        broken.append(f"{after.tasks - before.tasks:g} tasks leaked")
    if after.leases:
        broken.append(f"{after.leases:g} leases leaked")
    if account.hung:
        broken.append(f"{account.hung} requests hung")
    return {
        "minutes": seconds / 60,
        "requests": account.requests,
        "answered": account.answered,
        "failed": account.failed,
        "cut": account.cut,
        "left": account.left,
        "hung": account.hung,
        "memory_growth": round(last / first - 1, 4),
        "memory_mb_by_minute": [round(one.memory / 1e6, 1) for one in run.samples[:: int(60 / SAMPLE_S)]],
        "descriptors": [before.descriptors, after.descriptors],
        "tasks": [before.tasks, after.tasks],
        "leaked_leases": after.leases,
        "broken": broken,
    }


def main() -> int:
    """Run for as long as was asked; print one JSON object; return 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    result = asyncio.run(soak(parser.parse_args().minutes))
    print(json.dumps(result))
    return 1 if result["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
