"""kvpicker in full duplex against servers that only echo, over its transport and over grpc.aio, behind equal Envoys."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import proc, stack
from benchmarks.bodies import PATH, SMALL, chat_bodies
from benchmarks.windows import Case, Contestant, Meter, spread
from benchmarks.wire import UNLOGGED, extra_cpu, rate_ratio, versions
from ext_proc.local import envoy, processes

QUIET: dict[str, Any] = {**UNLOGGED, "scrape": {"enabled": False}, "health": {"probes": {"enabled": False}}}
"""The engine that streams would answer a scrape or a probe with a stream, too."""

IDLE_S = 10.0
"""CPU is counted in hundredths of a second, and a hundredth is 1 % of what a round uses in a third of that time."""

SENT = "http.entry.ext_proc.stream_msgs_sent"


class Plan(NamedTuple):
    """How much is measured: pairs of each kind, seconds of a window, streams at a time, events of each, their pace."""

    rounds: int
    seconds: float
    repeats: int
    streams: int
    events: int
    interval: float


FULL = Plan(rounds=6, seconds=1.5, repeats=12, streams=40, events=200, interval=0.02)
QUICK = Plan(rounds=2, seconds=0.4, repeats=0, streams=10, events=40, interval=0.02)


class Chunks(NamedTuple):
    """CPU of the server and of Envoy for each message of a window, in microseconds, and how many there were."""

    server_us: float
    envoy_us: float
    messages: int


@asynccontextmanager
async def event_engine(plan: Plan) -> AsyncIterator[str]:
    """Run the engine that streams; gives its address."""
    command = [sys.executable, "-m", "benchmarks.events", str(plan.events), str(plan.interval)]
    process = await processes.spawn(*command, output=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        line = await asyncio.wait_for(process.stdout.readline(), stack.START_TIMEOUT)
        yield f"127.0.0.1:{int(line)}"
    finally:
        await processes.stop(process)


class Field(NamedTuple):
    """Who is compared: kvpicker, the echo server on the same transport, and the same over grpc.aio."""

    product: Contestant
    base: Contestant
    aio: Contestant


@asynccontextmanager
async def contestants(binary: Path, endpoints: Sequence[str]) -> AsyncIterator[Field]:
    """Run all, each behind an Envoy of its own with both bodies in full duplex."""
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        folders = [Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kvp-bench-"))) for _ in range(3)]
        servers = (
            await enter(stack.kvpicker(folders[0], endpoints, **QUIET)),
            await enter(stack.no_op(folders[1], endpoints, duplex=True)),
            await enter(stack.no_op(folders[2], endpoints, duplex=True, transport="aio")),
        )
        gateways = [await enter(stack.gateway(binary, endpoints, one.address, duplex=True)) for one in servers]
        yield Field(*(Contestant(way, one.pid) for way, one in zip(gateways, servers, strict=True)))


async def stream(port: int, body: bytes) -> None:
    """Ask for one stream and read it to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (f"POST {PATH} HTTP/1.1", "host: bench", "content-type: application/json", f"content-length: {len(body)}")
    writer.write("\r\n".join((*lines, "", "")).encode() + body)
    received = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in received.partition(b"\r\n")[0]:
        raise RuntimeError(received.decode("utf-8", "replace"))
    rest = b""
    while not rest.endswith(b"\r\n0\r\n\r\n"):
        data = await reader.read(65_536)
        if not data:
            raise RuntimeError("a stream was cut")
        rest = rest[-8:] + data
    writer.close()


async def idle(contestant: Contestant) -> float:
    """Measure the CPU seconds that a server uses per second when nothing is asked of it."""
    assert contestant.server is not None  # noqa: S101  both have one
    before = proc.used(contestant.server).cpu
    await asyncio.sleep(IDLE_S)
    return (proc.used(contestant.server).cpu - before) / IDLE_S


async def chunks(contestant: Contestant, plan: Plan, idling: float) -> Chunks:
    """Let all streams run once; what the server uses by itself does not count."""
    assert contestant.server is not None  # noqa: S101  both have one
    pids, bodies = (contestant.server, contestant.gateway.pid), chat_bodies(SMALL)
    before = [proc.used(pid).cpu for pid in pids]
    sent, began = (await contestant.gateway.stats(SENT))[SENT], time.perf_counter()
    await asyncio.gather(*(stream(contestant.gateway.port, bodies[number]) for number in range(plan.streams)))
    used = [proc.used(pid).cpu - cpu for pid, cpu in zip(pids, before, strict=True)]
    used[0] -= idling * (time.perf_counter() - began)
    messages = (await contestant.gateway.stats(SENT))[SENT] - sent
    return Chunks(used[0] / messages * 1e6, used[1] / messages * 1e6, messages)


async def measure_chunks(plan: Plan, binary: Path) -> dict[str, Any]:
    """Compare the cost of an event that passes; the order is reversed every other round."""
    async with event_engine(plan) as engine, contestants(binary, [engine]) as field:
        rounds: list[tuple[Chunks, ...]] = []
        idling = await asyncio.gather(*map(idle, field))
        for number in range(plan.rounds):
            order = range(len(field)) if number % 2 == 0 else reversed(range(len(field)))
            found = {place: await chunks(field[place], plan, idling[place]) for place in order}
            rounds.append(tuple(found[place] for place in range(len(field))))
            print(f"events, round {number + 1} of {plan.rounds}", file=sys.stderr)
    product, base, aio = zip(*rounds, strict=True)
    return {
        "chunk_ratio": _ratio(product, base),
        "chunk_ratio_aio": _ratio(product, aio),
        "chunk_us": _median(product),
        "chunk_us_no_op": _median(base),
        "chunk_us_no_op_aio": _median(aio),
        "idle_us_per_s": round(idling[0] * 1e6),
        "chunk_us_envoy": round(statistics.median(one.envoy_us for one in product), 1),
        "messages_per_stream": round(product[0].messages / plan.streams, 1),
    }


def _ratio(ours: Sequence[Chunks], theirs: Sequence[Chunks]) -> float:
    return round(statistics.median(one.server_us / other.server_us for one, other in zip(ours, theirs, strict=True)), 3)


def _median(some: Sequence[Chunks]) -> float:
    return round(statistics.median(one.server_us for one in some), 1)


async def measure_requests(plan: Plan, binary: Path) -> dict[str, Any]:
    """Compare requests/s with small bodies and answers of one piece."""
    async with (
        stack.engines(binary) as (engines_pid, endpoints),
        contestants(binary, endpoints) as field,
        stack.load_generator() as generator,
    ):
        pids = [pid for one in field for pid in (one.server, one.gateway.pid) if pid is not None]
        meter = Meter(generator, (engines_pid, *pids), plan.seconds, plan.repeats)
        cases = [Case(SMALL, connections) for connections in (1, 16, 64)]
        pairs, against_aio = [
            [
                await meter.pair(field.product, other, case, base_first=number % 2 == 1)
                for number in range(plan.rounds)
                for case in cases
            ]
            for other in (field.base, field.aio)
        ]
    return {
        "request_ratio_4k": round(spread(pairs, rate_ratio).median, 3),
        "request_ratio_4k_range": str(spread(pairs, rate_ratio)),
        "request_ratio_4k_aio": round(spread(against_aio, rate_ratio).median, 3),
        "request_extra_cpu_us_4k": round(spread(pairs, extra_cpu).median, 1),
        "errors": meter.errors,
        "noisy_pairs": meter.noisy,
    }


async def run(plan: Plan) -> int:
    """Measure and print; returns the exit status."""
    binary = envoy.find_envoy()
    result = await measure_chunks(plan, binary) | await measure_requests(plan, binary)
    for name, figure in result.items():
        print(f"{name:28} {figure}")
    print(json.dumps({**result, "versions": versions(binary)}))
    return 1 if result["errors"] else 0


def main() -> int:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run: does it work at all?")
    arguments = parser.parse_args()
    return asyncio.run(run(QUICK if arguments.quick else FULL))


if __name__ == "__main__":
    sys.exit(main())
