"""The seven workloads of the policy's acceptance bars: requests with arrival times, lengths and shared prefixes.

`conv`, `convL`, `synth` and `bursty` are windows of Mooncake's traces, `uniq` has the lengths of Azure's of 2023;
`chat` and `hot` are made up. Where the description of a workload leaves a number open it is assumed, and said there.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import exp
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.independent.cache import BLOCK_TOKENS, Run

_TRACE_BLOCKS = 512 // BLOCK_TOKENS
"""Blocks of one hash id in Mooncake's traces."""

_REQUESTS = 2400
"""Requests of a run on a trace."""

_PAST_S, _STAY_S = 300.0, 15.0
"""How long sessions have been coming when a run begins, and how long their answers took then, seconds."""

_SECONDS = MappingProxyType({"chat": 75.0, "hot": 45.0, "uniq": 45.0})
"""Length of the runs on made-up workloads."""


class Request(msgspec.Struct, eq=False):
    """A request to come.

    Attributes:
        at: when it comes, seconds; for one that follows another, seconds after that one's end.
        runs: full blocks of its prompt.
        prompt: its tokens.
        output: tokens of the answer.
        answer: name of the first block that the answer fills.
        following: the next one of its session.
    """

    at: float
    runs: tuple[Run, ...]
    prompt: int
    output: int
    answer: int
    following: Request | None = None


class Workload(msgspec.Struct, frozen=True):
    """Requests in the order of their times, and when measuring begins and ends.

    What comes before is warm-up; what follows a request after the end does not come any more.
    """

    requests: list[Request]
    begin: float
    end: float


class Names:
    """Hands out names of blocks."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, blocks: int) -> int:
        """Return the first of so many consecutive names that nobody else has."""
        first = self._next
        self._next += max(blocks, 1)
        return first


class _Row(msgspec.Struct):
    """A line of a Mooncake trace; time in ms."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def _trace(name: str, *, burst: bool = False) -> Callable[[Path, float, random.Random], Workload]:
    def make(traces: Path, rate: float, generator: random.Random) -> Workload:
        return _windows(traces / f"mooncake_{name}.jsonl", rate, generator, burst=burst)

    return make


def _windows(path: Path, rate: float, generator: random.Random, *, burst: bool) -> Workload:
    """Overlay two windows of a trace, in the time in which so many requests come at that rate."""
    rows = [msgspec.json.decode(line, type=_Row) for line in path.read_bytes().splitlines()]
    size = min(_REQUESTS, len(rows) // 2) // 2
    first = generator.randrange(len(rows) // 2 - size + 1)
    seconds = 2 * size / rate
    names, firsts, requests = Names(), dict[int, int](), []
    for start in (first, first + len(rows) // 2):
        window = rows[start : start + size]
        for row, share in zip(window, _spread([row.timestamp for row in window], generator), strict=True):
            at = _burst(share * seconds) if burst else share * seconds
            requests.append(_of_trace(row, at, names, firsts))
    requests.sort(key=lambda request: request.at)
    return Workload(requests, 0.15 * seconds, seconds)


def _spread(stamps: list[float], generator: random.Random) -> list[float]:
    """Return times from 0 to 1; requests with one stamp (one trace is cut to 3 s) are spread to the next."""
    different = sorted(set(stamps))
    gap = (different[-1] - different[0]) / (len(different) - 1)
    follows = dict(zip(different, [*different[1:], different[-1] + gap], strict=True))
    start, span = different[0], different[-1] + gap - different[0]
    return [(stamp + generator.random() * (follows[stamp] - stamp) - start) / span for stamp in stamps]


def _burst(at: float) -> float:
    """Turn evenly passing time into 8 s at 2.6 times the rate, then 22 s at 0.42 times."""
    fast, slow = 8 * 2.6, 22 * 0.42
    cycles, rest = divmod(at / 30 * (fast + slow), fast + slow)
    return 30 * cycles + (rest / 2.6 if rest < fast else 8 + (rest - fast) / 0.42)


def _of_trace(row: _Row, at: float, names: Names, firsts: dict[int, int]) -> Request:
    blocks, runs = row.input_length // BLOCK_TOKENS, []
    for place, each in enumerate(row.hash_ids):
        first = firsts.get(each) or firsts.setdefault(each, names.take(_TRACE_BLOCKS))
        length = min(blocks - place * _TRACE_BLOCKS, _TRACE_BLOCKS)
        if length > 0:
            runs.append(Run(first, length))
    output = max(row.output_length, 1)
    answer = names.take(output // BLOCK_TOKENS + 2)
    return Request(at, tuple(runs), max(row.input_length, 1), output, answer)


def _chat(_: Path, rate: float, generator: random.Random) -> Workload:
    """Sessions of 5 turns on average on 4 system prompts of 2,048 tokens, whose users think for 8 s on average.

    Assumed: questions of 250 and answers of 300 tokens on average, log-normal with sigma 0.6; numbers of turns are
    geometric and thinking times exponential. A turn follows the end of the one before: the load is a closed loop. A run
    begins amid sessions as they would be by then.
    """
    names = Names()
    systems = [Run(names.take(2048 // BLOCK_TOKENS), 2048 // BLOCK_TOKENS) for _ in range(4)]
    seconds, at = _SECONDS["chat"], -_PAST_S
    requests = []
    while (at := at + generator.expovariate(rate / 5)) < seconds:
        request: Request | None = _session(at, generator.choice(systems), names, generator)
        while request is not None and request.at < 0:
            following = request.following
            if following is not None:
                following.at += request.at + _STAY_S
            request = following
        if request is not None:
            requests.append(request)
    requests.sort(key=lambda each: each.at)
    return Workload(requests, 0.4 * seconds, seconds)


def _session(at: float, system: Run, names: Names, generator: random.Random) -> Request:
    turns = 1
    while generator.random() > 1 / 5:
        turns += 1
    runs, length, made = [system], system.blocks * BLOCK_TOKENS, list[Request]()
    for turn in range(turns):
        question, output = _lognormal(250, 0.6, generator), _lognormal(300, 0.6, generator)
        before, length = length // BLOCK_TOKENS, length + question
        if length // BLOCK_TOKENS > before:
            runs.append(Run(names.take(length // BLOCK_TOKENS - before), length // BLOCK_TOKENS - before))
        blocks = (length + output) // BLOCK_TOKENS - length // BLOCK_TOKENS
        answer = names.take(blocks)
        made.append(Request(generator.expovariate(1 / 8) if turn else at, tuple(runs), length, output, answer))
        length += output
        if blocks:
            runs.append(Run(answer, blocks))
    for request, following in pairwise(made):
        request.following = following
    return made[0]


def _hot(_: Path, rate: float, generator: random.Random) -> Workload:
    """Eight prefixes of 6,144 tokens, chosen by Zipf's law with exponent 1.2, and 200 tokens of one's own; 150 out.

    Assumed: both lengths are log-normal with sigma 0.5.
    """
    names, blocks = Names(), 6144 // BLOCK_TOKENS
    prefixes = [Run(names.take(blocks), blocks) for _ in range(8)]
    weights = [1 / (rank + 1) ** 1.2 for rank in range(8)]
    seconds, at, requests = _SECONDS["hot"], 0.0, []
    while (at := at + generator.expovariate(rate)) < seconds:
        prefix = generator.choices(prefixes, weights)[0]
        length = blocks * BLOCK_TOKENS + _lognormal(200, 0.5, generator)
        requests.append(_alone(at, length, _lognormal(150, 0.5, generator), names, (prefix,)))
    return Workload(requests, 0.15 * seconds, seconds)


def _uniq(traces: Path, rate: float, generator: random.Random) -> Workload:
    """Lengths of Azure's traces, conversations and code, and nothing shared; arrivals are a Poisson process."""
    lengths = []
    for kind in ("conv", "code"):
        with (traces / f"AzureLLMInferenceTrace_{kind}.csv").open(encoding="utf-8") as lines:
            lengths += [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]
    names, seconds, at, requests = Names(), _SECONDS["uniq"], 0.0, []
    while (at := at + generator.expovariate(rate)) < seconds:
        prompt, output = generator.choice(lengths)
        requests.append(_alone(at, max(prompt, 1), max(output, 1), names))
    return Workload(requests, 0.15 * seconds, seconds)


def _alone(at: float, prompt: int, output: int, names: Names, runs: tuple[Run, ...] = ()) -> Request:
    """Make a request whose prompt nobody shares beyond those runs."""
    own = prompt // BLOCK_TOKENS - sum(run.blocks for run in runs)
    if own > 0:
        runs = (*runs, Run(names.take(own), own))
    return Request(at, runs, prompt, output, names.take(output // BLOCK_TOKENS + 2))


def _lognormal(mean: float, sigma: float, generator: random.Random) -> int:
    return max(round(mean * exp(generator.gauss(0, sigma) - sigma**2 / 2)), 1)


class Kind(msgspec.Struct, frozen=True):
    """A kind of workload.

    Attributes:
        make: makes one from the directory of traces, requests per second and a generator.
        capacity: requests per second and engine at load 1, by `--calibrate`: the most at which `ttft-oracle` keeps a
            goodput of 0.85.
        memory: KV memory of the engines, as a factor.
    """

    make: Callable[[Path, float, random.Random], Workload]
    capacity: float
    memory: int = 1


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "conv": Kind(_trace("conversation"), 1.13),
        "convL": Kind(_trace("conversation"), 1.25, memory=4),
        "synth": Kind(_trace("synthetic"), 1.19),
        "chat": Kind(_chat, 10.5),
        "hot": Kind(_hot, 15.8),
        "uniq": Kind(_uniq, 17.7),
        "bursty": Kind(_trace("conversation", burst=True), 0.82),
    }
)
