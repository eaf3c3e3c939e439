"""The simulated twin of live engines."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import twin
from benchmarks.texts import Texts
from ext_proc.replay.workloads import RECIPES, Order, make
from ext_proc.sim.fleet.engine import Engine
from ext_proc.sim.fleet.sequence import Sequence
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.scheduler import PRESETS, Scheduler, SimSequence
from ext_proc.sim.tokens import answer_text, hash_chain
from ext_proc.sim.workload import SimRequest, Workload

BLOCK = 64


def options(preset: str = "h100-8b", speed: float = 0.5) -> EngineOptions:
    """Return options of an engine."""
    return EngineOptions(preset=preset, speed=speed, block_size=BLOCK)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw open arrivals with shared prefixes; some prompts are longer than a step.

    No two come at once: whether they share their first step is decided by the event loop.
    """
    at, made = 0.0, []
    known: dict[tuple[int, ...], int] = {}
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.floats(0.001, 0.3))
        parts = tuple(range(draw(st.integers(0, 5)))) + tuple(draw(st.lists(st.integers(10, 12), max_size=100)))
        # Equal ids mean equal prefixes.
        chain = tuple(known.setdefault(parts[: end + 1], len(known)) for end in range(len(parts)))
        tail = draw(st.integers(1, BLOCK - 1))
        made.append(SimRequest(at, BLOCK * len(chain) + tail, draw(st.integers(1, 40)), chain))
    return Workload("drawn", BLOCK, tuple(made))


def live_times(workload: Workload, told: EngineOptions) -> list[tuple[float, int]]:
    """Run a live engine's scheduler on the text of a workload: first token, wall seconds, and cached tokens of each."""
    scheduler, texts = Scheduler(PRESETS[told.preset], told.limits), Texts(workload)
    sequences = []
    for place, request in enumerate(workload.requests):
        text = (texts.prompt(place) + answer_text(place, request.output_tokens)).encode()
        sequences.append(SimSequence(request.prompt_tokens, request.output_tokens, hash_chain(text, BLOCK, 0)))
    waiting = list(zip([request.at for request in workload.requests], sequences, strict=True))
    now = 0.0
    while waiting or scheduler.waiting or scheduler.running:
        step = scheduler.plan(now)
        end = waiting[0][0] if step is None else now + step.seconds / told.speed
        while waiting and waiting[0][0] <= end:
            at, sequence = waiting.pop(0)
            scheduler.submit(sequence, at)
        if step is not None:
            scheduler.complete(step, end)
        now = end
    return [(sequence.first_token or inf, sequence.cached_tokens) for sequence in sequences]


def twin_times(workload: Workload, told: EngineOptions) -> list[tuple[float, int]]:
    """Run the twin's engine on the ids of the workload."""
    engine = Engine(twin.preset(told), BLOCK)
    found: dict[int, tuple[float, int]] = {}
    waiting = [(request.at, Sequence(place, request)) for place, request in enumerate(workload.requests)]
    while waiting or engine.due < inf:
        if waiting and waiting[0][0] <= engine.due:
            at, sequence = waiting.pop(0)
            engine.submit(sequence, at)
            continue
        now = engine.due
        engine.advance()
        for sequence in engine.first:
            found[sequence.position] = (now, sequence.hit)
        engine.first.clear()
    return [found[place] for place in range(len(workload.requests))]


# Not random: an arrival within a microsecond of the end of a step could fall on either side of it.
@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads(), st.sampled_from(sorted(PRESETS)), st.sampled_from([0.25, 1.0, 3.0]))
def test_the_twin_is_as_fast_and_caches_as_much(workload: Workload, preset: str, speed: float) -> None:
    """First tokens come at the same times, and the same prompt tokens are found, whatever hardware is played."""
    told = options(preset, speed)
    for (live, cached), (simulated, hit) in zip(live_times(workload, told), twin_times(workload, told), strict=True):
        assert live == pytest.approx(simulated, rel=1e-4)
        assert cached == hit


def test_speed_divides_every_time_and_no_size() -> None:
    """An engine at half the speed takes twice as long for everything."""
    whole, half = twin.preset(options(speed=1.0)), twin.preset(options(speed=0.5))
    assert half.prefill_seconds(100, 5000.0) == pytest.approx(2 * whole.prefill_seconds(100, 5000.0))
    assert half.decode_seconds(3, 2, 900) == pytest.approx(2 * whole.decode_seconds(3, 2, 900))
    assert (half.kv_tokens, half.step_tokens, half.max_running) == (450_000, 8192, 256)


def test_wall_seconds_are_engine_seconds_over_speed() -> None:
    """Arrivals and pauses alike."""
    requests = (SimRequest(3.0, 10, 4, ()), SimRequest(2.0, 20, 4, (), after=0))
    paced = twin.paced(Workload("w", BLOCK, requests), 0.5)
    assert [request.at for request in paced.requests] == [6.0, 4.0]


def test_shortened_chats_are_whole() -> None:
    """A turn still begins with the one before and its answer, and has as many whole blocks as tokens."""
    long = make(RECIPES["chat"], Order(5.0, 60, 2))
    short = twin.shortened(long, 0.125)
    for before, request in zip(long.requests, short.requests, strict=True):
        history = request.blocks + request.output_blocks
        assert len(request.blocks) == request.prompt_tokens // BLOCK
        assert len(history) == (request.prompt_tokens + request.output_tokens) // BLOCK
        assert request.output_tokens == max(round(before.output_tokens / 8), 1)
        if request.after is None:
            assert request.prompt_tokens == before.prompt_tokens
            continue
        last, old = short.requests[request.after], long.requests[request.after]
        assert request.blocks[: len(last.blocks + last.output_blocks)] == last.blocks + last.output_blocks
        said = before.prompt_tokens - old.prompt_tokens - old.output_tokens
        assert request.prompt_tokens == last.prompt_tokens + last.output_tokens + said


def test_blocks_of_answers_are_nobody_elses() -> None:
    """Shortening makes no two conversations share more than their system prompt."""
    short = twin.shortened(make(RECIPES["chat"], Order(5.0, 60, 2)), 0.125)
    answers = [block for request in short.requests for block in request.output_blocks]
    assert answers
    assert len(answers) == len(set(answers))


@pytest.mark.parametrize(
    ("contestant", "label"),
    [
        (twin.Contestant("least-wait", first_token=True), "least-wait (first token)"),
        (twin.Contestant("least-wait", scrape=True), "least-wait (scrape)"),
        (twin.Contestant("round-robin"), "round-robin"),
    ],
)
def test_the_twin_hears_what_the_live_kvpicker_hears(contestant: twin.Contestant, label: str) -> None:
    """First tokens and scrapes only where the live run has them; ends as late as Envoy tells them; sessions by name."""
    heard = twin.conditions(contestant)
    assert contestant.label == label
    assert heard.first_token is contestant.first_token
    assert (heard.scrape_interval is not None) is contestant.scrape
    assert heard.end_lag == pytest.approx(0.1)
    assert heard.sessions
