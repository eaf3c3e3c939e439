"""A simulated engine in virtual time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.presets import EnginePreset
from ext_proc.sim.fleet.sequence import Sequence
from ext_proc.sim.workload import SimRequest, Workload
from tests.unit.sim.fleet.fleets import H100, preset, request, workloads


class Stepwise(Engine):
    """An engine that never does two steps at once."""

    def _longest_run(self) -> int:
        return 1


class Run:
    """Drives an engine through requests, and notes when each got its first and its last token."""

    def __init__(self, engine: Engine, *requests: SimRequest) -> None:
        self.engine = engine
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.sequences: dict[int, Sequence] = {}
        self.least_available = engine.blocks.available
        arrivals = sorted(enumerate(requests), key=lambda item: item[1].at)
        while arrivals or engine.due != inf:
            if arrivals and arrivals[0][1].at <= engine.due:
                position, asked = arrivals.pop(0)
                engine.submit(Sequence(position, asked), asked.at)
            else:
                self._advance()
            self.least_available = min(self.least_available, engine.blocks.available)
            assert engine.blocks.used + engine.blocks.available == engine.blocks.capacity

    def _advance(self) -> None:
        now = self.engine.due
        self.engine.advance()
        self.first |= {sequence.position: now for sequence in self.engine.first}
        self.last |= {sequence.position: now for sequence in self.engine.ended}
        self.sequences |= {sequence.position: sequence for sequence in self.engine.ended}
        self.engine.first.clear()
        self.engine.ended.clear()


def test_a_lone_request_takes_what_the_formula_says() -> None:
    """First and last token of 20,000 + 3 tokens, in chunks of 8,192, come when a calculation by hand says."""
    run = Run(Engine(H100, 512), request(prompt=20_000, output=3, at=1.0))
    prefill = 3 * 5.8e-3 + 20_000 * 27e-6 + 1.3e-9 * 20_000**2 / 2
    decode = 2 * (5.8e-3 + 40e-6) + 50e-9 * (20_001 + 20_002)
    assert run.first == {0: pytest.approx(1 + prefill)}
    assert run.last == {0: pytest.approx(1 + prefill + decode)}


def test_a_cached_prefix_is_not_computed_again() -> None:
    """A request whose prompt is cached computes the rest alone, with the attention to what is cached."""
    blocks = tuple(range(1, 9))
    asked = request(prompt=4096 + 100, output=1, blocks=blocks)
    run = Run(Engine(H100, 512), asked, request(prompt=4096 + 100, output=1, blocks=blocks, at=5.0))
    assert run.sequences[1].hit == 4096
    assert run.first[1] - 5.0 == pytest.approx(5.8e-3 + 100 * 27e-6 + 1.3e-9 * 100 * (4096 + 50))


def test_the_last_token_is_computed_even_if_all_blocks_are_cached() -> None:
    """A prompt of whole blocks that is cached altogether computes its last block."""
    asked = request(prompt=1024, output=1, blocks=(1, 2))
    run = Run(Engine(H100, 512), asked, request(prompt=1024, output=1, blocks=(1, 2), at=5.0))
    assert run.sequences[1].hit == 512


def test_siblings_at_the_same_time_both_compute() -> None:
    """Blocks are visible once computed, so two equal prompts that are admitted together share nothing."""
    asked = request(prompt=1000, output=1, blocks=(1,))
    run = Run(Engine(H100, 512), request(prompt=10), asked, asked)
    assert [run.sequences[position].hit for position in (1, 2)] == [0, 0]


def test_a_block_is_visible_as_soon_as_its_chunk_is_computed() -> None:
    """A request that waits for the budget finds what the request before it has computed so far."""
    long = tuple(range(1, 33))
    run = Run(Engine(H100, 512), request(prompt=16_384, blocks=long), request(prompt=8192, blocks=long[:16], at=0.01))
    assert run.sequences[1].hit == 8192 - 512


def test_generated_blocks_serve_the_next_turn() -> None:
    """A chat's next prompt finds the answer of the turn before."""
    first = request(prompt=100, output=30, blocks=(1, 2, 3, 4, 5, 6), output_blocks=(7, 8))
    run = Run(Engine(H100, 16), first, request(prompt=200, blocks=(1, 2, 3, 4, 5, 6, 7, 8, 9), at=9.0))
    assert run.sequences[1].hit == 8 * 16


def test_decoding_slows_down_with_every_request_that_runs() -> None:
    """A request's tokens come later if another decodes beside it."""
    alone = Run(Engine(H100, 16), request(output=50))
    both = Run(Engine(H100, 16), request(output=50), request(output=50))
    assert both.last[0] > alone.last[0]


def test_waiting_requests_are_admitted_first_come_first_served() -> None:
    """A large request at the head of the queue is not overtaken by a small one that would fit."""
    engine = Engine(preset(kv_tokens=1600), 16)
    run = Run(engine, request(prompt=1000, output=40), request(prompt=1000, at=0.01), request(prompt=16, at=0.02))
    assert run.first[1] >= run.last[0]
    assert run.first[2] >= run.first[1]


def test_no_more_requests_run_than_the_limit() -> None:
    """The third of three waits for an end if two may run."""
    run = Run(Engine(preset(max_running=2), 16), *[request(output=20)] * 3)
    assert run.first[2] > min(run.last[0], run.last[1])


def test_the_youngest_is_preempted_when_memory_runs_out_and_computes_again() -> None:
    """Two that fit when admitted outgrow the cache; the second loses its blocks, and both end."""
    engine = Engine(preset(kv_tokens=16 * 16), 16)
    run = Run(engine, request(prompt=100, output=100), request(prompt=100, output=100, at=0.001))
    assert [run.sequences[position].preemptions for position in (0, 1)] == [0, 1]
    again = run.sequences[1].recomputed
    assert 100 < again < 200
    assert engine.computed == 200 + again
    assert run.last[1] > run.last[0]


def test_a_slow_engine_takes_a_multiple_of_the_time() -> None:
    """Slowness stretches every step that begins after it set in."""
    engine = Engine(H100, 16)
    engine.slowness = 3.0
    quick, slow = Run(Engine(H100, 16), request()), Run(engine, request())
    assert slow.last[0] == pytest.approx(3 * quick.last[0])


def test_a_crash_loses_requests_and_cache() -> None:
    """After a crash the engine is idle and cold, and says who was lost."""
    engine = Engine(preset(max_running=1), 16)
    engine.submit(Sequence(0, request(blocks=(1, 2))), 0.0)
    engine.submit(Sequence(1, request()), 0.0)
    engine.advance()
    assert [sequence.position for sequence in engine.crash()] == [0, 1]
    assert (engine.due, engine.blocks.used, 1 in engine.blocks) == (inf, 0, False)
    assert Run(engine, request(at=9.0)).sequences[0].hit == 0


def test_an_engine_says_whom_it_could_never_serve() -> None:
    """A request that is larger than the cache does not fit, whoever else is there."""
    engine = Engine(preset(kv_tokens=1600), 16)
    assert engine.fits(request(prompt=1500, output=100))
    assert not engine.fits(request(prompt=1500, output=101))


SMALL = st.builds(
    lambda kv, step, most: preset(kv_tokens=kv * 16, step_tokens=step, max_running=most),
    st.integers(25, 60),
    st.sampled_from([16, 100, 8192]),
    st.integers(1, 8),
)


@given(workloads(), SMALL)
@settings(deadline=None)
def test_many_steps_at_once_are_the_same_as_one_by_one(asked: Workload, size: EnginePreset) -> None:
    """Doing runs of decode steps in closed form changes no time, no hit and no preemption."""
    quick, slow = Run(Engine(size, 16), *asked.requests), Run(Stepwise(size, 16), *asked.requests)
    assert quick.first == pytest.approx(slow.first)
    assert quick.last == pytest.approx(slow.last)
    for position, sequence in slow.sequences.items():
        same = quick.sequences[position]
        assert (same.hit, same.preemptions, same.recomputed) == (
            sequence.hit,
            sequence.preemptions,
            sequence.recomputed,
        )


@given(workloads(), SMALL)
@settings(deadline=None)
def test_nothing_is_lost_and_nothing_is_computed_twice_without_cause(asked: Workload, size: EnginePreset) -> None:
    """Every request ends once, tokens add up, and all blocks come back."""
    engine = Engine(size, 16)
    run = Run(engine, *asked.requests)
    assert set(run.last) == set(run.first) == set(range(len(asked.requests)))
    assert engine.computed == sum(sequence.work for sequence in run.sequences.values())
    assert all(not sequence.recomputed for sequence in run.sequences.values() if not sequence.preemptions)
    assert (engine.blocks.used, engine.blocks.private) == (0, 0)
    assert run.least_available >= 0
    for position, one in enumerate(asked.requests):
        assert one.at < run.first[position] <= run.last[position]
