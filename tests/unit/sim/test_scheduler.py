"""The scheduler, driven by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sim.scheduler import PRESETS, Limits, Preset, Scheduler, SimSequence, State

H100 = PRESETS["h100-8b"]


def make(kv_tokens: int = 16_000, preset: Preset = H100, **limits: int) -> Scheduler:
    """A scheduler with little memory."""
    return Scheduler(preset, Limits(kv_tokens=kv_tokens, **limits))


def sequence(prompt: int, output: int = 4, family: int = 0) -> SimSequence:
    """A sequence whose blocks are shared with others of its family."""
    blocks = (prompt + output) // 16
    return SimSequence(prompt, output, [family * 10_000 + place for place in range(blocks)])


def run(scheduler: Scheduler, now: float = 0.0) -> float:
    """Run until nothing is left to do; the time at the end."""
    while (step := scheduler.plan(now)) is not None:
        now += step.seconds
        scheduler.complete(step, now)
    return now


def test_an_idle_engine_answers_after_prefill_and_decodes() -> None:
    """The first token comes with the prefill step, each other one with a step of its own."""
    scheduler, one = make(), sequence(160, 3)
    scheduler.submit(one, 0.0)
    end = run(scheduler)
    prefill = H100.a + 160 * H100.b + H100.e * 160 * 80
    decodes = 2 * (H100.a + H100.c) + H100.d * (160 + 161)
    assert one.first_token == pytest.approx(prefill)
    assert end == one.finished == pytest.approx(prefill + decodes)


def test_a_cached_prefix_is_not_computed_again() -> None:
    """The second of two equal prompts hits all full blocks but the one of the last token."""
    scheduler, first, second = make(), sequence(160), sequence(160)
    for one in (first, second):
        scheduler.submit(one, 0.0)
        run(scheduler)
    assert (first.cached_tokens, second.cached_tokens) == (0, 144)
    assert (scheduler.statistics.prefix_queries, scheduler.statistics.prefix_hits) == (320, 144)


def test_the_answer_is_cached_for_the_next_turn() -> None:
    """A prompt that continues an answer hits the blocks that decoding filled."""
    scheduler, turn, following = make(), sequence(160, 64), sequence(400)
    for one in (turn, following):
        scheduler.submit(one, 0.0)
        run(scheduler)
    assert following.cached_tokens == 208


def test_siblings_in_one_step_both_compute() -> None:
    """Blocks can be hit only after the step that computes them."""
    scheduler, first, second = make(), sequence(160), sequence(160)
    scheduler.submit(first, 0.0)
    scheduler.submit(second, 0.0)
    run(scheduler)
    assert second.cached_tokens == 0


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    """One step never processes more tokens than its budget, decodes included."""
    scheduler = make(token_budget=100)
    scheduler.submit(sequence(16, 50, family=1), 0.0)
    scheduler.complete(scheduler.plan(0.0) or pytest.fail("no step"), 0.0)
    scheduler.submit(sequence(250), 0.0)
    chunks = []
    while (step := scheduler.plan(0.0)) and step.prefill:
        chunks.append((len(step.decode), step.prefill[0][1]))
        scheduler.complete(step, 0.0)
    assert chunks == [(1, 99), (1, 99), (1, 52)]


def test_the_queue_is_first_in_first_out() -> None:
    """A small request does not overtake a large one that waits for memory."""
    scheduler = make(kv_tokens=1600)
    running, large, small = sequence(1000, 8, 1), sequence(800, 8, 2), sequence(16, 8, 3)
    for one in (running, large, small):
        scheduler.submit(one, 0.0)
    scheduler.plan(0.0)
    assert list(scheduler.waiting) == [large, small]


def test_no_more_sequences_run_than_allowed() -> None:
    """The batch is bounded, and all sequences finish nevertheless."""
    scheduler = make(max_num_seqs=2)
    sequences = [sequence(32, 4, family) for family in range(5)]
    for one in sequences:
        scheduler.submit(one, 0.0)
    scheduler.plan(0.0)
    assert len(scheduler.running) == 2


def test_a_full_queue_refuses() -> None:
    """With a bound on the queue, what comes too much is refused and counted."""
    scheduler = make(max_num_seqs=1, max_waiting=1)
    accepted = [scheduler.submit(sequence(32, 4, family), 0.0) for family in range(4)]
    assert accepted == [True, True, False, False]
    assert scheduler.statistics.rejections == 2


def test_a_sequence_larger_than_the_memory_is_refused() -> None:
    """What can never run is an error at once, not an eternal wait."""
    with pytest.raises(ValueError, match="larger"):
        make(kv_tokens=160).submit(sequence(150, 11), 0.0)


def test_the_youngest_pays_when_memory_runs_out() -> None:
    """A preempted sequence is computed again and still gets all its tokens."""
    scheduler = make(kv_tokens=320)
    old, young = sequence(112, 96, 1), sequence(112, 96, 2)
    scheduler.submit(old, 0.0)
    scheduler.submit(young, 0.0)
    run(scheduler)
    assert (old.preemptions, young.generated, young.state) == (0, 96, State.FINISHED)
    assert young.preemptions == scheduler.statistics.preemptions > 0


def test_a_preempted_sequence_waits_in_front() -> None:
    """Whose memory was taken is served before those that have not run yet."""
    scheduler = make(kv_tokens=320)
    old, young, late = (sequence(112, 96, family) for family in (1, 2, 3))
    for one in (old, young, late):
        scheduler.submit(one, 0.0)
    now = 0.0
    while not young.preemptions:
        step = scheduler.plan(now) or pytest.fail("no step")
        now += step.seconds
        scheduler.complete(step, now)
    assert list(scheduler.waiting) == [young, late]


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "prefilled", "decoding"])
def test_an_aborted_sequence_frees_its_memory(steps: int) -> None:
    """A client that leaves costs nothing more, whatever its request was doing."""
    scheduler, one = make(), sequence(160, 30)
    scheduler.submit(one, 0.0)
    for _ in range(steps):
        scheduler.complete(scheduler.plan(0.0) or pytest.fail("no step"), 0.0)
    scheduler.abort(one)
    assert (scheduler.cache.used, len(scheduler.running), len(scheduler.waiting)) == (0, 0, 0)
    assert scheduler.plan(0.0) is None


def test_an_abort_in_the_middle_of_a_step_is_not_reported() -> None:
    """A step that ends after its sequence was aborted makes no progress for it."""
    scheduler, one = make(), sequence(160)
    scheduler.submit(one, 0.0)
    step = scheduler.plan(0.0) or pytest.fail("no step")
    scheduler.abort(one)
    assert scheduler.complete(step, 1.0) == []


def test_pooling_ends_with_the_prefill() -> None:
    """A sequence without output tokens finishes after its prompt."""
    scheduler, one = make(), sequence(160, 0)
    scheduler.submit(one, 0.0)
    run(scheduler)
    assert (one.state, one.generated) == (State.FINISHED, 0)


def test_running_at_once_hits_what_running_in_steps_would() -> None:
    """The path without time finds the same blocks in the cache."""
    stepped, instant = make(), make()
    hits = []
    for prompt in (160, 320, 200):
        one, other = sequence(prompt), sequence(prompt)
        stepped.submit(one, 0.0)
        run(stepped)
        instant.run_at_once(other, 0.0)
        hits.append((one.cached_tokens, other.cached_tokens))
    assert hits == [(0, 0), (160, 160), (192, 192)]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 8),
)
def test_every_sequence_ends_and_all_memory_is_free_again(
    shapes: list[tuple[int, int, int]], max_num_seqs: int
) -> None:
    """No mixture of requests starves one, loses a block or leaves a token out."""
    scheduler = make(kv_tokens=640, max_num_seqs=max_num_seqs, token_budget=64)
    sequences = [sequence(*shape) for shape in shapes]
    for one in sequences:
        scheduler.submit(one, 0.0)
    run(scheduler)
    assert all(one.state is State.FINISHED for one in sequences)
    assert [one.generated for one in sequences] == [one.output_tokens for one in sequences]
    assert scheduler.cache.used == 0


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_more_work_never_takes_less_time(preset: Preset) -> None:
    """Longer prompts have a later first token on all hardware."""
    times = []
    for prompt in (100, 1000, 10_000):
        scheduler, one = make(kv_tokens=100_000, preset=preset), sequence(prompt)
        scheduler.submit(one, 0.0)
        run(scheduler)
        times.append(one.first_token or 0.0)
    assert times == sorted(times)
