"""What the decision alone costs: `EndpointPicker.pick` with a warm index, and what the index takes of memory."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from benchmarks import proc
from benchmarks.bodies import MODEL
from benchmarks.parts import fleet, requests
from ext_proc.assembly import Core
from ext_proc.core.hashing import PromptHasher
from ext_proc.core.health_states import HealthPolicy
from ext_proc.core.model import Api, Decision, Ending, InferenceRequest, Operation
from ext_proc.core.prefix_index import ObservedIndex

FLEETS = (8, 100, 1000)
BLOCKS = 64
MILLION = 1_000_000
IN_FLIGHT = 4
"""Requests per endpoint that are running at any time."""

RATE = 2000.0
"""Decisions per second of the simulated clock."""


def unwell(core: Core, health: str) -> None:
    """Let an endpoint be ejected, or start slowly, for as long as the measurement lasts."""
    if not health:
        return
    first, *_ = core.registry.snapshot.endpoints
    core.health.configure(HealthPolicy(ejection=1e6, max_ejection=1e6, slow_start=1e6), probing=False)
    core.health.note(first, Ending.CONNECT_FAILURE, 0.0)
    if health == "slow":
        core.health.note(first, Ending.OK, 0.0, sent=0.0)


def measure(
    endpoints: int, decisions: int, prompts: Sequence[InferenceRequest], health: Literal["", "ejected", "slow"] = ""
) -> list[float]:
    """Make decisions on a warm fleet; returns what each took, in microseconds.

    Args:
        endpoints: how many there are.
        decisions: how many are made.
        prompts: what is asked for.
        health: `ejected` or `slow` for a fleet of which one endpoint is ejected, or starts slowly.
    """
    core = fleet(endpoints)
    unwell(core, health)
    generator = random.Random(0)  # noqa: S311  breaks ties
    running: deque[str] = deque()
    times = []
    for number in range(len(prompts) + decisions):
        request, now = just_read(prompts[number % len(prompts)]), number / RATE
        began = time.perf_counter_ns()
        decision = core.picker.pick(request, now, generator)
        ended = time.perf_counter_ns()
        assert isinstance(decision, Decision)  # noqa: S101  nothing removes candidates here
        if number >= len(prompts):
            times.append((ended - began) / 1e3)
        running.append(decision.id)
        if len(running) > endpoints * IN_FLIGHT:
            core.ledger.end(running.popleft(), now)
    return times


def just_read(request: InferenceRequest) -> InferenceRequest:
    """Copy a request's prompt: a parser has just written it, so it is in the processor's cache."""
    return msgspec.structs.replace(request, prompt=bytes(memoryview(request.prompt)))


def long_prompts(count: int = 200, systems: int = 10) -> list[InferenceRequest]:
    """Make requests of BLOCKS blocks, of which groups share two fifths, as the bodies of the other benchmarks do."""
    generator, hasher = random.Random(64), PromptHasher()  # noqa: S311  reproducible on purpose
    shared = hasher.end(BLOCKS * 2 // 5)
    beginnings = [generator.randbytes(shared) for _ in range(systems)]
    prompts = [
        beginnings[number % systems] + generator.randbytes(hasher.end(BLOCKS) - shared) for number in range(count)
    ]
    return [
        InferenceRequest(
            operation=Operation.CHAT, api=Api.OPENAI, model=MODEL, prompt=prompt, prompt_tokens=len(prompt) // 4
        )
        for prompt in prompts
    ]


def medians(decisions: int = 3000) -> dict[str, float]:
    """Measure each fleet size with 4 KB prompts and name the medians, in microseconds."""
    prompts = requests()
    return {f"decision_us_{size}": statistics.median(measure(size, decisions, prompts)) for size in FLEETS}


def index_megabytes() -> float:
    """Return what a million blocks take in the index of eight endpoints."""
    index = ObservedIndex(PromptHasher().tokens, max_blocks=MILLION, default_capacity=10**12)
    generator, before = random.Random(1), proc.resident_bytes()  # noqa: S311  reproducible on purpose
    for slot in range(8):
        index.add(slot)
    number = 0
    while len(index) + BLOCKS <= MILLION:
        index.learn(number % 8, [generator.getrandbits(64) for _ in range(BLOCKS)], 0)
        number += 1
    return (proc.resident_bytes() - before) / len(index) * MILLION / 1e6


def cases() -> list[tuple[str, list[InferenceRequest], Literal["", "ejected", "slow"]]]:
    """Name what is measured."""
    short = requests()
    return [
        ("decision_us", short, ""),
        ("decision_ejected_us", short, "ejected"),
        ("decision_slow_start_us", short, "slow"),
        ("decision_64_blocks_us", long_prompts(), ""),
    ]


def main() -> None:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=3000)
    arguments = parser.parse_args()
    result = {"index_mb_per_million_blocks": round(index_megabytes(), 1)}
    print(f"a million blocks in the index: {result['index_mb_per_million_blocks']} MB")
    for name, prompts, health in cases():
        for size in FLEETS:
            times = sorted(measure(size, arguments.decisions, prompts, health))
            median, p99 = statistics.median(times), times[int(len(times) * 0.99)]
            print(f"{name}_{size}: median {median:6.1f} us, p99 {p99:6.1f} us, fastest {times[0]:6.1f} us")
            result[f"{name}_{size}"] = round(median, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
