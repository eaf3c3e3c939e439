"""What an access-log entry of a real Envoy costs, joined to an open decision, in process and over gRPC."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import grpc.aio

from benchmarks import proc, stack
from benchmarks.bodies import SMALL, chat_bodies
from benchmarks.messages import body_message, headers_message
from benchmarks.parts import Parts, observed_fleet, requests
from ext_proc.assembly import Core
from ext_proc.core.model import Decision
from ext_proc.core.names import (
    ACCESS_LOG_SERVICE,
    DECISION_KEY,
    EXT_PROC_SERVICE,
    KVPICKER_NAMESPACE,
    LB_NAMESPACE,
    SERVED,
)
from ext_proc.local.envoy import find_envoy
from ext_proc.wire import access_log
from ext_proc.wire._pb.access_log_entry_pb2 import HTTPAccessLogEntry
from ext_proc.wire._pb.access_log_pb2 import StreamAccessLogsMessage
from ext_proc.wire._pb.ext_proc_pb2 import ProcessingResponse
from ext_proc.wire.codec import packed

BATCH_BYTES = 65536
"""Size of a message, as the lean profile sets it."""

_PARALLEL = 32


def batches(recorded: bytes, decisions: Sequence[str]) -> list[bytes]:
    """Make full messages of entries like the recorded one, one for each decision (packed as in the metadata)."""
    entry = StreamAccessLogsMessage.FromString(recorded).http_logs.log_entry[0]
    size = max(BATCH_BYTES // entry.ByteSize(), 1)
    messages = []
    for start in range(0, len(decisions), size):
        message = StreamAccessLogsMessage()
        for decision in decisions[start : start + size]:
            _join(entry, decision)
            message.http_logs.log_entry.append(entry)
        messages.append(message.SerializeToString())
    return messages


def _join(entry: HTTPAccessLogEntry, decision: str) -> None:
    namespaces = entry.common_properties.metadata.filter_metadata
    namespaces[KVPICKER_NAMESPACE].fields[DECISION_KEY].string_value = decision
    namespaces[LB_NAMESPACE].fields[SERVED].string_value = decision.split("|")[1]


def in_process(recorded: bytes, count: int) -> float:
    """Settle `count` decisions through the session and the observers of the product; gives CPU µs per entry."""
    with observed_fleet(8) as parts:
        messages = batches(recorded, [packed(decision) for decision in _decide(parts.core, count)])
        began = time.process_time()
        settle(parts, messages)
        seconds = time.process_time() - began
    return seconds / count * 1e6


def settle(parts: Parts, messages: Iterable[bytes]) -> None:
    """Hand messages to a session; raises RuntimeError if that left a decision open."""
    feedback, count = parts.core.feedback, parts.metrics.access_log_entry
    session = access_log.AccessLogSession(feedback, time.monotonic, count)
    for message in messages:
        session.receive(message)
    if leases := len(parts.core.ledger):
        raise RuntimeError(f"{leases} decisions were not settled")


def functions(recorded: bytes, count: int) -> None:
    """Print the functions that take longest, by cProfile."""
    with observed_fleet(8) as parts:
        messages = batches(recorded, [packed(decision) for decision in _decide(parts.core, count)])
        profiler = cProfile.Profile()
        profiler.runcall(settle, parts, messages)
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)


def _decide(core: Core, count: int) -> Iterator[Decision]:
    generator = random.Random(0)  # noqa: S311  breaks ties
    for request in itertools.islice(itertools.cycle(requests()), count):
        decision = core.picker.pick(request, time.monotonic(), generator)
        assert isinstance(decision, Decision)  # noqa: S101  nothing removes candidates here
        yield decision


async def over_grpc(server: stack.Server, recorded: bytes, count: int, rounds: int) -> float:
    """Let a running kvpicker decide and settle `count` requests a round; gives CPU µs per entry."""
    cpu = 0.0
    async with stack.channel(server.address) as channel:
        for _ in range(rounds):
            decisions = await _decide_over_grpc(channel, count)
            messages = batches(recorded, decisions)
            before = proc.used(server.pid)
            call: stack.BytesCall = channel.stream_stream(f"/{ACCESS_LOG_SERVICE}/StreamAccessLogs")()
            for message in messages:
                await call.write(message)
            await call.done_writing()
            await call.read()
            cpu += proc.used(server.pid).since(before).cpu
    return cpu / count / rounds * 1e6


async def _decide_over_grpc(channel: grpc.aio.Channel, count: int) -> list[str]:
    bodies = itertools.islice(itertools.cycle(chat_bodies(SMALL)), count)
    shared = iter(bodies)

    async def client() -> list[str]:
        return [await _exchange(channel, body) for body in shared]

    lists = await asyncio.gather(*[client() for _ in range(_PARALLEL)])
    return list(itertools.chain.from_iterable(lists))


async def _exchange(channel: grpc.aio.Channel, body: bytes) -> str:
    """Go through one exchange and return the decision as the metadata of the answer has it."""
    call: stack.BytesCall = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
    await call.write(headers_message(len(body)))
    await call.read()
    await call.write(body_message(body))
    answer = ProcessingResponse.FromString(await call.read())
    await call.done_writing()
    await call.read()
    decision: str = answer.dynamic_metadata.fields[KVPICKER_NAMESPACE].struct_value.fields[DECISION_KEY].string_value
    return decision


async def record(binary: Path, folder: Path, endpoints: Sequence[str], generator: stack.LoadGenerator) -> bytes:
    """Take the first access-log message of a real Envoy."""
    file = folder / "access_log.bin"
    async with (
        stack.no_op(folder, endpoints, file) as server,
        stack.gateway(binary, endpoints, server.address, logs=True) as entry,
    ):
        await generator.run(entry.port, SMALL, 1, seconds=0.1)
        for _ in range(100):
            if file.exists():
                return file.read_bytes()
            await asyncio.sleep(0.1)
    raise RuntimeError("Envoy sent no access log")


async def run(arguments: argparse.Namespace) -> None:
    """Record an entry, then measure both ways."""
    binary = find_envoy()
    with tempfile.TemporaryDirectory(prefix="kvpicker-bench-") as name:
        folder = Path(name)
        async with stack.engines(binary) as (_, endpoints), stack.load_generator() as generator:
            recorded = await record(binary, folder, endpoints, generator)
            if arguments.functions:
                functions(recorded, arguments.entries)
                return
            async with stack.kvpicker(folder, endpoints) as server:
                sent = await over_grpc(server, recorded, arguments.entries, arguments.rounds)
    inside = statistics.median(in_process(recorded, arguments.entries) for _ in range(arguments.rounds))
    print(json.dumps({"access_log_us_per_entry": round(sent, 1), "access_log_us_in_process": round(inside, 1)}))


def main() -> None:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=3000, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--functions", action="store_true", help="break the time in process down by function")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
