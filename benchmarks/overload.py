"""What becomes of three times the load that the engines can serve: goodput, waits, 429 and who obeys them."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks import stack
from benchmarks.bodies import MODEL
from benchmarks.proc import resident_mb
from ext_proc.local import envoy
from ext_proc.sim.options import EngineOptions

ENGINES = 4
SEQUENCES = 8
CAP = 10
"""Requests in flight per engine: two more than run at once, for the time until their end is heard of."""

TOKENS = 256
QUEUE = 120
"""About what is served in the longest wait: with fewer places, a small error of prediction refuses who obeyed."""

WAIT_S = 10.0
PRIORITY = "x-priority"
URGENT_SHARE = 0.1
OVERLOAD = 3.0
MOST_RETURNS = 4
RAMP_S = 5.0
"""Seconds after a change of load that count for nothing: about two generations of requests."""


class Answer(NamedTuple):
    """One attempt of a request: when it was sent and answered (monotonic seconds), how, and when to come back."""

    sent: float
    ended: float
    status: int
    retry_after: float | None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.sent


class Client:
    """Sends requests that differ from one another, and comes back with those that are told when."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._number = 0

    async def ask(self, *, urgent: bool = False, returns: int = 0) -> list[Answer]:
        """Send one request, and again when it is told to, at most so often."""
        self._number += 1
        text = f"Question {self._number}: what is overload?"
        body = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True}
        data = json.dumps(body | {"messages": [{"role": "user", "content": text}]}).encode()
        headers = {"content-type": "application/json"} | ({PRIORITY: "10"} if urgent else {})
        attempts: list[Answer] = []
        while len(attempts) <= returns:
            attempts.append(await self._send(data, headers))
            wait = attempts[-1].retry_after
            if wait is None or len(attempts) > returns:
                break
            await asyncio.sleep(wait)
        return attempts

    async def _send(self, data: bytes, headers: dict[str, str]) -> Answer:
        sent = time.monotonic()
        try:
            async with self._session.post(self._url, data=data, headers=headers) as answer:
                await answer.read()
                told = answer.headers.get("retry-after")
                return Answer(sent, time.monotonic(), answer.status, None if told is None else float(told))
        except aiohttp.ClientError:
            return Answer(sent, time.monotonic(), 0, None)


async def peak(client: Client, seconds: float) -> tuple[float, list[Answer]]:
    """Keep every place taken and nobody waiting; return good answers per second, and all answers."""
    end = time.monotonic() + seconds
    answers: list[Answer] = []

    async def worker() -> None:
        while time.monotonic() < end:
            answers.extend(await client.ask())

    begin = time.monotonic() + RAMP_S
    await asyncio.gather(*(worker() for _ in range(ENGINES * CAP)))
    return goodput(answers, begin, end), answers


def goodput(answers: list[Answer], begin: float, end: float) -> float:
    """Return good answers per second of a time."""
    return sum(answer.status == 200 and begin <= answer.ended < end for answer in answers) / (end - begin)


class Overloaded(NamedTuple):
    """What an overload showed: every request with its attempts, by urgency, and the memory of kvpicker in MB."""

    begin: float
    end: float
    usual: list[list[Answer]]
    urgent: list[list[Answer]]
    memory: list[float]


async def overload(client: Client, rate: float, seconds: float, pid: int) -> Overloaded:
    """Send so many requests a second at random times, then wait for all that were told to come back."""
    generator = random.Random(1)  # noqa: S311  arrivals
    begin = time.monotonic()
    usual: list[asyncio.Task[list[Answer]]] = []
    urgent: list[asyncio.Task[list[Answer]]] = []
    memory: list[float] = []
    at = 0.0
    while at < seconds:
        at += generator.expovariate(rate)
        await asyncio.sleep(max(begin + at - time.monotonic(), 0.0))
        is_urgent = generator.random() < URGENT_SHARE
        group = urgent if is_urgent else usual
        group.append(asyncio.create_task(client.ask(urgent=is_urgent, returns=MOST_RETURNS)))
        if at > len(memory):
            memory.append(resident_mb(pid))
    end = time.monotonic()
    return Overloaded(begin, end, await asyncio.gather(*usual), await asyncio.gather(*urgent), memory)


def summary(most: float, before: list[Answer], seen: Overloaded) -> dict[str, Any]:
    """Gather the numbers."""
    requests = seen.usual + seen.urgent
    answers = [answer for attempts in requests for answer in attempts]
    refused = [attempts for attempts in requests if attempts[0].status == 429]
    returned = [attempts for attempts in refused if len(attempts) > 1]
    first_return = sum(attempts[1].status == 200 for attempts in returned)
    good = goodput(answers, seen.begin + RAMP_S, seen.end)
    steady = seen.memory[len(seen.memory) // 3 :] or [0.0]
    urgent = [attempts[0].seconds for attempts in seen.urgent if attempts[0].status == 200]
    usual = [answer.seconds for answer in before]
    odd = [answer.status for answer in answers + before if answer.status not in {200, 429}]
    return {
        "peak_per_s": round(most, 2),
        "goodput_per_s": round(good, 2),
        "goodput_ratio": round(good / most, 3),
        "requests": len(requests),
        "refused_at_first": len(refused),
        "retry_after_s_max": max((attempts[0].retry_after or 0.0 for attempts in refused), default=0.0),
        "obeyed_and_answered_ratio": round(first_return / max(len(returned), 1), 4),
        "never_answered": sum(attempts[-1].status != 200 for attempts in requests),
        "urgent_refused": sum(attempts[0].status != 200 for attempts in seen.urgent),
        "seconds_p50_peak": round(statistics.median(usual), 3),
        "seconds_p50_urgent": round(statistics.median(urgent), 3) if urgent else None,
        "seconds_p99_peak": round(_high(usual), 3),
        "seconds_p99_urgent": round(_high(urgent), 3) if urgent else None,
        "memory_mb": round(steady[-1], 1),
        "memory_growth_ratio": round(steady[-1] / max(steady[0], 0.1) - 1, 4),
        "other_statuses": sorted(set(odd)),
        "errors": len(odd),
    }


def _high(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


async def measure(seconds: float, folder: Path) -> dict[str, Any]:
    """Run engines, kvpicker and Envoy, and measure peak and overload."""
    options = EngineOptions(models=(MODEL,), preset="h100-8b", speed=1.0, max_num_seqs=SEQUENCES)
    async with AsyncExitStack() as exits:
        addresses = [
            await exits.enter_async_context(stack.sim_engine(options, f"engine-{number}")) for number in range(ENGINES)
        ]
        pool = {
            "endpoints": addresses,
            "models": [MODEL],
            "caps": {"requests": CAP},
            "queue": {"max_requests": QUEUE, "wait_s": WAIT_S},
        }
        server = await exits.enter_async_context(
            stack.kvpicker(folder, addresses, pools={"bench": pool}, tenants={"priority_header": PRIORITY})
        )
        gateway = await exits.enter_async_context(
            stack.gateway(envoy.find_envoy(), addresses, server.address, logs=True, priority_header=PRIORITY)
        )
        connector = aiohttp.TCPConnector(limit=0)
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=connector))
        client = Client(session, gateway.port)
        most, before = await peak(client, max(seconds / 3, 2 * RAMP_S))
        print(f"peak {most:.1f} requests/s; now {OVERLOAD:g} times that for {seconds:g} s", flush=True)
        seen = await overload(client, OVERLOAD * most, seconds, server.pid)
        return summary(most, before, seen)


def main() -> int:
    """Run it; 0 if the goals are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the overload [%(default)s]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvpicker-overload-") as folder:
        result = asyncio.run(measure(arguments.seconds, Path(folder)))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["goodput_ratio"] >= 0.9 and not result["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
