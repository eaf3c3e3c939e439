"""Runs the same conversations through each contestant, on the same engines with empty caches, in rotating order."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from benchmarks.engines.contestants import Contestant, Engines
from benchmarks.engines.conversations import Answer, Plan, ask, body, converse
from benchmarks.engines.vllm_engine import MODEL, VllmEngine

WARM_UP_WORDS = 60

_T = TypeVar("_T")


class Run(NamedTuple):
    """One contestant's run of one repetition.

    Attributes:
        contestant: whose.
        repetition: which.
        answers: what came back, in that order.
        spread: requests that each engine answered.
        counters: kvpicker's, where it tells any.
    """

    contestant: str
    repetition: int
    answers: Sequence[Answer]
    spread: Sequence[int]
    counters: dict[str, float]


class Standing(msgspec.Struct, frozen=True):
    """What a contestant reached over all repetitions.

    Attributes:
        cached_ratio: cached tokens of prompts, as the engines report them, over all tokens of prompts.
        mean_ms: mean time from sending a request to the end of its answer.
        p50_ms: the median of the same.
        p99_ms: the 99th percentile of the same.
        ratios: the cached ratio of each repetition.
        means_ms: the mean of each repetition.
        failed: requests without a good answer.
    """

    cached_ratio: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    ratios: list[float]
    means_ms: list[float]
    failed: int


async def compare(
    contestants: Sequence[Contestant],
    engines: Engines,
    plan: Plan,
    repetitions: int,
    tell: Callable[[Run], None] = lambda _run: None,
    within_s: float = math.inf,
) -> list[Run]:
    """Let each contestant have its run in each repetition; who begins changes, so that drift does not decide.

    Args:
        contestants: who takes part.
        engines: what they lead to; they run already.
        plan: what is sent; each repetition has words of its own.
        repetitions: how often, at most.
        tell: hears of each run that is over.
        within_s: seconds within which a further repetition should end; the first is always run.
    """
    runs: list[Run] = []
    began = time.monotonic()
    for repetition in range(repetitions):
        elapsed = time.monotonic() - began
        if repetition and elapsed + elapsed / repetition > within_s:
            break
        for contestant in in_turn(contestants, repetition):
            runs.append(await _run(contestant, engines, plan, repetition))
            tell(runs[-1])
    return runs


def in_turn(names: Sequence[_T], repetition: int) -> list[_T]:
    """Return the order of a repetition: by turns everybody is first, and nobody always follows the same one."""
    count = len(names)
    first, step = repetition % count, 1 + repetition % 2
    if step == 2 and count % 2 == 0:  # every second one would come twice
        step = 1
    return [names[(first + step * place) % count] for place in range(count)]


async def _run(contestant: Contestant, engines: Engines, plan: Plan, repetition: int) -> Run:
    seed = f"repetition {repetition}"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, contestant.start(engines) as way:
        for engine in engines:
            await engine.reset(session)
            # An engine tells of the reset with its next step; every contestant begins after that.
            words = {"role": "user", "content": f"{seed} warm up " * WARM_UP_WORDS}
            await ask(session, engine.url, body(MODEL, [words], 1))
        before = [await _answered(session, engine) for engine in engines]
        answers = await converse(session, way.url, MODEL, plan, seed)
        after = [await _answered(session, engine) for engine in engines]
        spread = [now - then for now, then in zip(after, before, strict=True)]
        return Run(contestant.name, repetition, answers, spread, await _counters(session, way.admin))


async def _answered(session: aiohttp.ClientSession, engine: VllmEngine) -> int:
    """Return how many requests an engine has answered since it was started."""
    async with session.get(engine.url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:request_success_total")))


async def _counters(session: aiohttp.ClientSession, admin: str) -> dict[str, float]:
    if not admin:
        return {}
    async with session.get(admin + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    wanted = ("kvpicker_token_lookups_total", "kvpicker_cached_tokens", "kvpicker_kv_event")
    told = [line.rpartition(" ") for line in lines if line.startswith(wanted) and "_created" not in line]
    return {name: float(value) for name, _, value in told}


def standings(runs: Sequence[Run]) -> dict[str, Standing]:
    """Sum up the runs of each contestant."""
    return {name: _standing([run for run in runs if run.contestant == name]) for name in _names(runs)}


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.contestant for run in runs))


def _standing(runs: Sequence[Run]) -> Standing:
    answers = [answer for run in runs for answer in run.answers]
    times = sorted(_good_times(answers)) or [0.0]
    return Standing(
        cached_ratio=round(cached_ratio(answers), 4),
        mean_ms=round(statistics.fmean(times) * 1e3, 1),
        p50_ms=round(times[len(times) // 2] * 1e3, 1),
        p99_ms=round(times[int(len(times) * 0.99)] * 1e3, 1),
        ratios=[round(cached_ratio(run.answers), 4) for run in runs],
        means_ms=[round(statistics.fmean(_good_times(run.answers) or [0.0]) * 1e3, 1) for run in runs],
        failed=sum(bool(answer.problem) for answer in answers),
    )


def cached_ratio(answers: Sequence[Answer]) -> float:
    """Return the share of prompt tokens that engines had cached."""
    prompts = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / max(prompts, 1)


def _good_times(answers: Sequence[Answer]) -> list[float]:
    return [answer.seconds for answer in answers if not answer.problem]


def table(runs: Sequence[Run]) -> str:
    """Show the standings as a table in Markdown."""
    lines = [
        "| contestant | cached | of each repetition | mean ms | of each repetition | p50 | p99 | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in standings(runs).items():
        ratios = ", ".join(f"{ratio:.3f}" for ratio in one.ratios)
        means = ", ".join(f"{mean:.0f}" for mean in one.means_ms)
        lines.append(
            f"| {name} | {one.cached_ratio:.3f} | {ratios} | {one.mean_ms:.0f} | {means} | {one.p50_ms:.0f}"
            f" | {one.p99_ms:.0f} | {one.failed} |"
        )
    return "\n".join(lines)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the standings by contestant, for the last line of a run."""
    built: dict[str, Any] = msgspec.to_builtins(standings(runs))
    return built
