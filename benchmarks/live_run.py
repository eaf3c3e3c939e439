"""Sends a workload through Envoy and kvpicker to live simulated engines and measures what the client sees."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import stack
from benchmarks.proc import machine_cpu
from benchmarks.texts import Texts, body
from benchmarks.twin import Contestant
from ext_proc.local.envoy import find_envoy
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.tokens import TOKEN_BYTES
from ext_proc.sim.workload import SimRequest, Workload

PATH = "/v1/completions"
TIMEOUT_S = 300.0


class Answer(NamedTuple):
    """What came back of a request; `first_token` in wall seconds, None if it failed."""

    first_token: float | None
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    problem: str = ""


class Measured(NamedTuple):
    """Times to first token in engine seconds, and the share of prompt tokens that were cached."""

    mean: float
    p50: float
    p99: float
    hit_ratio: float

    def __str__(self) -> str:
        """Show it."""
        return f"mean {self.mean:.3f}  p50 {self.p50:.3f}  p99 {self.p99:.3f}  hit {self.hit_ratio:.3f}"


class Live(NamedTuple):
    """A live run.

    Attributes:
        measured: what the client saw.
        overhead: share of the mean time to first token that was spent outside the engines' own count.
        answered: how many requests got their whole answer.
        cores: cores that the whole machine used meanwhile.
        seconds: wall seconds it took.
        problems: some of what went wrong.
    """

    measured: Measured
    overhead: float
    answered: int
    cores: float
    seconds: float
    problems: tuple[str, ...]


class Client:
    """Sends a workload: open arrivals at their times, follow-ups after the answer and a while of thinking.

    Attributes:
        answers: what came back so far, by the request's position; nothing follows on a failure.
    """

    def __init__(self, session: aiohttp.ClientSession, made: Workload) -> None:
        self.answers: dict[int, Answer] = {}
        self._session = session
        self._made = made
        self._texts = Texts(made)
        self._followers: dict[int, list[int]] = {}
        for position, request in enumerate(made.requests):
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(position)

    async def run(self) -> None:
        """Send everything and wait for all answers."""
        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for position, request in enumerate(self._made.requests):
                if request.after is None:
                    tasks.create_task(self._converse(tasks, position, start + request.at))

    async def _converse(self, tasks: asyncio.TaskGroup, position: int, at: float, history: str = "") -> None:
        await asyncio.sleep(max(at - time.perf_counter(), 0))
        prompt = self._texts.prompt(position, history)
        answer = await self._ask(prompt, self._made.requests[position])
        self.answers[position] = answer
        if answer.first_token is None:
            return
        now = time.perf_counter()
        for follower in self._followers.get(position, ()):
            think = self._made.requests[follower].at
            tasks.create_task(self._converse(tasks, follower, now + think, prompt + answer.text))

    async def _ask(self, prompt: str, request: SimRequest) -> Answer:
        data = body(prompt, request)
        began = time.perf_counter()
        try:
            async with self._session.post(PATH, data=data, headers={"content-type": "application/json"}) as response:
                if response.status != 200:
                    return Answer(None, problem=f"{response.status} {(await response.text())[:200]}")
                answer = await _read(response, began)
        except (aiohttp.ClientError, TimeoutError) as error:
            return Answer(None, problem=repr(error))
        counts = answer.prompt_tokens, len(answer.text) / TOKEN_BYTES
        if counts != (request.prompt_tokens, request.output_tokens):
            return Answer(None, problem=f"{counts} tokens, not {request.prompt_tokens, request.output_tokens}")
        return answer


async def _read(response: aiohttp.ClientResponse, began: float) -> Answer:
    first, pieces = None, []
    usage: dict[str, Any] = {}
    async for line in response.content:
        data = line.removeprefix(b"data: ").strip()
        if not data or data == b"[DONE]":
            continue
        event = json.loads(data)
        for choice in event.get("choices", ()):
            if first is None and choice["text"]:
                first = time.perf_counter() - began
            pieces.append(choice["text"])
        usage = event.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(first, "".join(pieces), usage.get("prompt_tokens", 0), cached)


async def live(contestant: Contestant, made: Workload, options: EngineOptions, engines: int) -> Live:
    """Start engines, kvpicker and Envoy, send the workload and stop them."""
    sizes = made.block_tokens * TOKEN_BYTES
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kvpicker-live-")))
        starting = [stack.sim_engine(options, f"engine-{number}") for number in range(engines)]
        addresses = [await opened.enter_async_context(engine) for engine in starting]
        server = await opened.enter_async_context(
            stack.kvpicker(
                folder,
                [{"address": address, "kv_tokens": options.limits.kv_tokens} for address in addresses],
                contestant.strategy,
                scrape={"enabled": contestant.scrape},
                # As coarse as the workload's blocks, so that both indexes hold the same.
                index={"first_block_bytes": sizes, "last_block_bytes": sizes},
                log={"level": "warning"},
            )
        )
        gateway = stack.gateway(find_envoy(), addresses, server.address, logs=True, first_token=contestant.first_token)
        port = (await opened.enter_async_context(gateway)).port
        session = await opened.enter_async_context(
            aiohttp.ClientSession(
                f"http://127.0.0.1:{port}",
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            )
        )
        client = Client(session, made)
        cpu, began = machine_cpu(), time.monotonic()
        await client.run()
        seconds = time.monotonic() - began
        cores = (machine_cpu() - cpu) / seconds
        return _sum_up(client, await _engine_mean(addresses), options.speed, cores, seconds)


async def _engine_mean(addresses: Sequence[str]) -> float:
    """Return the mean time to first token that the engines counted themselves, wall seconds."""
    seconds = requests = 0.0
    async with aiohttp.ClientSession() as session:
        for address in addresses:
            async with session.get(f"http://{address}/metrics") as response:
                page = await response.text()
            for family in text_string_to_metric_families(page):
                if family.name == "vllm:time_to_first_token_seconds":
                    seconds += sum(sample.value for sample in family.samples if sample.name.endswith("_sum"))
                    requests += sum(sample.value for sample in family.samples if sample.name.endswith("_count"))
    return seconds / max(requests, 1)


def _sum_up(client: Client, engine_mean: float, speed: float, cores: float, seconds: float) -> Live:
    answers = list(client.answers.values())
    times = sorted(answer.first_token for answer in answers if answer.first_token is not None)
    if not times:
        raise SystemExit(f"no request was answered: {answers[0].problem if answers else 'none was sent'}")
    prompts = sum(answer.prompt_tokens for answer in answers)
    mean = statistics.fmean(times)
    measured = Measured(
        mean * speed,
        times[len(times) // 2] * speed,
        times[int(len(times) * 0.99)] * speed,
        sum(answer.cached_tokens for answer in answers) / prompts,
    )
    problems = sorted({answer.problem for answer in answers if answer.problem})
    return Live(measured, 1 - engine_mean / mean, len(times), cores, seconds, tuple(problems[:5]))
