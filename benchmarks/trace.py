"""Replays the beginning of a Mooncake trace through a running stack, once for each strategy, on fresh engines."""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks import stack
from benchmarks.bodies import MODEL, PATH
from ext_proc.local.envoy import find_envoy
from ext_proc.sim.options import EngineOptions

BLOCK_TOKENS = 512
"""Tokens that one hash id of the trace stands for."""

TOKEN_BYTES = 4
"""Bytes of text that the simulated engine counts as a token."""

TIMEOUT_S = 120.0


class Record(msgspec.Struct):
    """One line of the trace; `timestamp` in milliseconds."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class Request(NamedTuple):
    """What is sent, and when: seconds after the start."""

    at: float
    body: bytes


class Answer(NamedTuple):
    """What came back; seconds to the first token, None if the request failed."""

    first_token: float | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    problem: str = ""


class Scale(NamedTuple):
    """Factors on the lengths of prompts, on those of answers, and on the time between requests."""

    length: float
    output: float
    time: float


def read(path: Path, count: int, scale: Scale) -> list[Request]:
    """Read the first requests of a trace."""
    with path.open("rb") as lines:
        records = [msgspec.json.decode(line, type=Record) for line in itertools.islice(lines, count)]
    start = records[0].timestamp
    return [Request((record.timestamp - start) / 1e3 * scale.time, _body(record, scale)) for record in records]


def _body(record: Record, scale: Scale) -> bytes:
    size = max(int(record.input_length * scale.length), 1) * TOKEN_BYTES
    block = int(BLOCK_TOKENS * scale.length) * TOKEN_BYTES
    text = "".join(_block(number, block) for number in record.hash_ids)[:size]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max(int(record.output_length * scale.output), 1),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


@functools.cache
def _block(number: int, size: int) -> str:
    """Expand a hash id to text: the same id is the same text, different ids differ from the first bytes on."""
    generator = random.Random(number)  # noqa: S311  reproducible on purpose
    words = (f"{generator.getrandbits(32):08x}" for _ in itertools.count())
    text = ""
    while len(text) < size:
        text += next(words) + " "
    return text[:size]


class Options(NamedTuple):
    """What the fleet looks like."""

    engines: int
    preset: str
    kv_tokens: int


async def replay(strategy: str, requests: Sequence[Request], options: Options) -> list[Answer]:
    """Start engines, kvpicker and Envoy, send the requests at their times and collect the answers."""
    binary = find_envoy()
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kvpicker-trace-")))
        engine = EngineOptions(models=(MODEL,), preset=options.preset, speed=1.0, kv_tokens=options.kv_tokens)
        starting = [stack.sim_engine(engine, f"engine-{number}") for number in range(options.engines)]
        addresses = [await opened.enter_async_context(each) for each in starting]
        endpoints = [{"address": address, "kv_tokens": options.kv_tokens} for address in addresses]
        server = await opened.enter_async_context(stack.kvpicker(folder, endpoints, strategy))
        gateway = stack.gateway(binary, addresses, server.address, logs=True)
        port = (await opened.enter_async_context(gateway)).port
        session = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}",
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        )
        await opened.enter_async_context(session)
        start = time.perf_counter()
        return await asyncio.gather(*[_send(session, request, start) for request in requests])


async def _send(session: aiohttp.ClientSession, request: Request, start: float) -> Answer:
    await asyncio.sleep(max(start + request.at - time.perf_counter(), 0))
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    try:
        async with session.post(PATH, data=request.body, headers=headers) as response:
            if response.status != 200:
                return Answer(None, problem=f"{response.status} {(await response.text())[:200]}")
            return await _read(response, began)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(None, problem=repr(error))


async def _read(response: aiohttp.ClientResponse, began: float) -> Answer:
    first, usage, done = None, None, False
    async for line in response.content:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            done = True
        elif data:
            event = json.loads(data)
            if first is None and any(choice["delta"].get("content") for choice in event["choices"]):
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    if first is None or usage is None or not done:
        return Answer(None, problem="the stream ended early")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(first, usage["prompt_tokens"], cached)


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Sum the answers of one strategy up; times in seconds."""
    times = sorted(answer.first_token for answer in answers if answer.first_token is not None)
    tokens = sum(answer.prompt_tokens for answer in answers)
    result: dict[str, Any] = {
        "requests": len(answers),
        "answered": len(times),
        "cached_ratio": round(sum(answer.cached_tokens for answer in answers) / max(tokens, 1), 4),
    }
    if times:
        result["ttft_mean_s"] = round(statistics.fmean(times), 3)
        result["ttft_p50_s"] = round(statistics.median(times), 3)
        result["ttft_p99_s"] = round(times[int(len(times) * 0.99)], 3)
    problems = sorted({answer.problem for answer in answers if answer.problem})
    return result | ({"problems": problems[:5]} if problems else {})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("trace", type=Path, help="a JSON lines file of Mooncake's")
    add("--requests", type=int, default=300, help="from the beginning (%(default)s)")
    add("--length-scale", type=float, default=1 / 8, help="factor on prompt lengths (%(default)s)")
    add("--output-scale", type=float, default=1 / 16, help="factor on answer lengths (%(default)s)")
    add("--time-scale", type=float, default=0.3, help="factor on the time between requests (%(default)s)")
    add("--engines", type=int, default=3, help="(%(default)s)")
    add("--preset", default="l40s-8b", help="hardware the engines play (%(default)s)")
    add("--kv-tokens", type=int, default=180_000, help="KV memory of an engine (the preset's)")
    add("--strategies", default="least-wait,round-robin", help="names, by comma (%(default)s)")
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Replay with each strategy in turn and print a line for each."""
    scale = Scale(arguments.length_scale, arguments.output_scale, arguments.time_scale)
    requests = read(arguments.trace, arguments.requests, scale)
    options = Options(arguments.engines, arguments.preset, arguments.kv_tokens)
    result: dict[str, Any] = {}
    for strategy in arguments.strategies.split(","):
        result[strategy] = summary(await replay(strategy, requests, options))
        print(f"{strategy:16}", "  ".join(f"{name} {value}" for name, value in result[strategy].items()))
    return result


def main() -> int:
    """Run the command; the last line is JSON, and the status is 0 if every request was answered."""
    result = asyncio.run(run(_arguments()))
    print(json.dumps(result))
    return 0 if all(each["answered"] == each["requests"] for each in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
