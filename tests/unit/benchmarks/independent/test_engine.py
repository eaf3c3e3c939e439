"""The engines of the independent simulator."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.independent.cache import Run
from benchmarks.independent.engine import Engine
from benchmarks.independent.hardware import Hardware, Job

BLOCKS = 40


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[float, Job]]:
    """Draw jobs of up to 300 + 200 tokens, some of which share a beginning."""
    at, drawn = 0.0, []
    for name in range(draw(st.integers(1, 16))):
        at += draw(st.sampled_from((0.0, 0.004, 0.02, 0.5)))
        prompt, output = draw(st.integers(1, 300)), draw(st.integers(1, 200))
        shared = min(draw(st.sampled_from((0, 3, 7))), prompt // 16)
        runs = [Run(1 + 1000 * draw(st.integers(0, 2)), shared)] if shared else []
        if prompt // 16 > shared:
            runs.append(Run(10_000 + 1000 * name, prompt // 16 - shared))
        drawn.append((at, Job(tuple(runs), prompt, output, 10_500 + 1000 * name)))
    return drawn


def play(engine: Engine, jobs: list[tuple[float, Job]]) -> tuple[list[Job], Counter[int]]:
    """Let jobs arrive and end; return the finished ones, and the copies of each block as reported."""
    finished, copies, coming = [], Counter[int](), list(jobs)
    while coming or engine.due < inf:
        if coming and coming[0][0] <= engine.due:
            at, job = coming.pop(0)
            engine.submit(job, at)
            continue
        _, ended, changes = engine.run()
        finished += ended
        for first, end, stored in changes:
            copies.update(dict.fromkeys(range(first, end), 1 if stored else -1))
            assert min(copies.values()) >= 0
        assert 0 <= engine.cache.used <= engine.cache.capacity
    return finished, copies


@given(arrivals(), st.sampled_from((8, 64, 512)), st.sampled_from((1, 3, 50)))
@settings(deadline=None, max_examples=30)
def test_all_finish_and_nothing_leaks(jobs: list[tuple[float, Job]], budget: int, most: int) -> None:
    """Every job ends with all its tokens, in memory that never overflows and is all given back, as was reported."""
    engine = Engine(Hardware(blocks=BLOCKS, budget=budget, most=most))
    finished, copies = play(engine, jobs)
    assert sorted(map(id, finished)) == sorted(id(job) for _, job in jobs)
    assert all(job.generated == job.output for job in finished)
    assert all(job.arrived < job.first_token <= job.finished for job in finished)
    assert engine.cache.used == 0
    assert copies.total() <= BLOCKS


@given(arrivals())
@settings(deadline=None, max_examples=10)
def test_skipping_changes_nothing(jobs: list[tuple[float, Job]]) -> None:
    """Steps that are taken as one end when they would one by one."""
    copies = [(at, Job(job.runs, job.prompt, job.output, job.answer)) for at, job in jobs]
    play(Engine(Hardware(blocks=200)), jobs)
    slow = Engine(Hardware(blocks=200))
    slow._skippable = lambda: 1  # type: ignore[method-assign]
    play(slow, copies)
    for (_, job), (_, copy) in zip(jobs, copies, strict=True):
        assert job.finished == pytest.approx(copy.finished)
        assert job.first_token == pytest.approx(copy.first_token)


def test_alone_takes_what_the_roofline_says() -> None:
    """A prompt of one step takes that step, and each further token one that reads the weights and its own context."""
    hardware, job = Hardware(), Job((Run(1, 64),), 1024, 3, 100)
    play(Engine(hardware), [(0.0, job)])
    fixed = hardware.overhead + hardware.sequence
    first = fixed + hardware.linear * 1024 + hardware.attention * 1024 * 512
    assert job.first_token == pytest.approx(first)
    assert job.finished == pytest.approx(first + 2 * (fixed + hardware.weights) + hardware.read * (1024 + 1025))


def test_same_prompt_is_computed_once() -> None:
    """A prompt that is there is found but for its last block, of which one token at least is computed."""
    jobs = [Job((Run(1, 64),), 1024, 1, 100), Job((Run(1, 64),), 1024, 1, 200)]
    play(Engine(Hardware()), [(float(place), job) for place, job in enumerate(jobs)])
    assert [job.cached for job in jobs] == [0, 1008]


def test_youngest_gives_way() -> None:
    """Without memory for all that decode, the one that came last starts again and still answers in full."""
    first, second = Job((Run(1, 10),), 160, 200, 100), Job((Run(51, 10),), 160, 200, 200)
    engine = Engine(Hardware(blocks=30))
    finished, _ = play(engine, [(0.0, first), (0.0, second)])
    assert engine.preemptions >= 1
    assert finished == [first, second]
    assert second.generated == 200


def test_wait_is_what_comes() -> None:
    """What is said of the wait of a job comes true if nothing else does."""
    jobs = [Job((Run(1000 * name, 1000),), 16_000, 1, 1000 * name + 999) for name in range(1, 4)]
    engine = Engine(Hardware())
    for job in jobs[:2]:
        engine.submit(job, 0.0)
    said = engine.wait([(16_000, 16_000)] * 2, 0.0)
    engine.submit(jobs[2], 0.0)
    play(engine, [])
    assert jobs[2].first_token == pytest.approx(said, rel=0.05)
