"""Generated workloads: lengths, sharing, arrivals, and what load means."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.errors import ConfigError
from ext_proc.replay import generators, shaping
from ext_proc.replay.traces import Trace
from ext_proc.replay.workloads import RECIPES, Order, fitting, from_trace, make
from ext_proc.sim.workload import SimRequest, Workload

NAMES = sorted(RECIPES)


def trace(*times: float, name: str = "t") -> Trace:
    """Make a trace with requests at those times, each with a block of its own and one that all share."""
    requests = [SimRequest(at, 1024 + number, 10, (7, 100 + number)) for number, at in enumerate(times)]
    return Trace(name, "mooncake", 512, tuple(requests))


STEADY = trace(*range(400))


def order(rate: float = 10.0, count: int = 300, seed: int = 1) -> Order:
    """Order a workload, made from a steady trace where it needs one."""
    return Order(rate, count, seed, (STEADY,))


def infinite_cache(requests: tuple[SimRequest, ...], block_tokens: int) -> float:
    """Return the share of prompt tokens that a cache without bounds would have, with requests in their order."""
    seen: set[int] = set()
    found = 0
    for request in requests:
        for block in request.blocks:
            if block not in seen:
                break
            found += block_tokens
        seen.update(request.blocks, request.output_blocks)
    return found / sum(request.prompt_tokens for request in requests)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_workloads(name: str) -> None:
    """And another seed gives another one."""
    assert make(RECIPES[name], order()) == make(RECIPES[name], order())
    assert make(RECIPES[name], order()) != make(RECIPES[name], order(seed=2))


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_is_well_formed(name: str) -> None:
    """Whole blocks only; open arrivals are in order; a follow-up stands behind what it waits for."""
    made = make(RECIPES[name], order())
    for place, request in enumerate(made.requests):
        assert len(request.blocks) == request.prompt_tokens // made.block_tokens
        assert request.output_tokens >= 1
        assert request.after is None or request.after < place
    arrivals = [request.at for request in made.requests if request.after is None]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"chat", "bursty"}])
def test_requests_come_at_the_rate_that_was_ordered(name: str) -> None:
    """Over the whole, give or take what chance does."""
    made = make(RECIPES[name], order(rate=20.0, count=400))
    assert len(made.requests) / made.requests[-1].at == pytest.approx(20.0, rel=0.15)


@pytest.mark.parametrize("name", [name for name in NAMES if RECIPES[name].needs])
def test_a_workload_made_from_a_trace_says_so(name: str) -> None:
    """The message names the file that is wanted and the command."""
    with pytest.raises(ConfigError, match=rf"--workload: `{name}` is made from Mooncake.*kvpicker replay FILE"):
        make(RECIPES[name], Order(1.0, 10, 1))


@pytest.mark.parametrize("name", [name for name in NAMES if RECIPES[name].needs])
def test_a_trace_without_ids_of_blocks_is_refused(name: str) -> None:
    """What shares nothing would be called a workload of long conversations."""
    azure = Trace("code.csv", "azure", 512, STEADY.requests)
    with pytest.raises(ConfigError, match=r"--workload: .*ids of blocks, and code\.csv is of the format azure"):
        make(RECIPES[name], Order(1.0, 10, 1, (azure,)))


def test_chat_is_what_it_says() -> None:
    """Five turns on the average, four system prompts, and each turn begins with all that was said before."""
    made = make(RECIPES["chat"], Order(60.0, 12_000, 1))
    requests = made.requests
    first = [request for request in requests if request.after is None]
    assert len(requests) == pytest.approx(12_000, rel=0.08)
    assert len(requests) / len(first) == pytest.approx(5.0, rel=0.25)
    assert len({request.blocks[:32] for request in first}) == 4
    for request in requests:
        if request.after is not None:
            before = requests[request.after]
            history = before.blocks + before.output_blocks
            assert request.blocks[: len(history)] == history
            assert request.session == before.session
            assert len(history) == (before.prompt_tokens + before.output_tokens) // 64
    thinking = [request.at for request in requests if request.after is not None]
    assert fmean(thinking) == pytest.approx(8.0, rel=0.1)
    assert infinite_cache(requests, 64) == pytest.approx(0.92, abs=0.02)


def test_hot_prefixes_are_few_and_unequal() -> None:
    """Eight prefixes of 6,144 tokens by Zipf's law; about 200 tokens are new, about 150 are answered."""
    requests = make(RECIPES["hot"], order(count=4000)).requests
    counts: dict[tuple[int, ...], int] = {}
    for request in requests:
        counts[request.blocks[:96]] = counts.get(request.blocks[:96], 0) + 1
    ordered = sorted(counts.values(), reverse=True)
    assert len(ordered) == 8
    assert ordered[0] / ordered[1] == pytest.approx(2**1.2, rel=0.2)
    assert fmean(request.prompt_tokens - 6144 for request in requests) == pytest.approx(200, rel=0.05)
    assert fmean(request.output_tokens for request in requests) == pytest.approx(150, rel=0.05)
    assert infinite_cache(requests, 64) == pytest.approx(0.97, abs=0.01)


def test_unique_prompts_share_nothing_and_have_azures_lengths() -> None:
    """Without a trace the lengths are drawn from the quantiles of the traces of 2023."""
    requests = make(RECIPES["uniq"], Order(10.0, 8000, 1)).requests
    assert infinite_cache(requests, 512) == 0.0
    assert fmean(request.prompt_tokens for request in requests) == pytest.approx(1434, rel=0.06)
    assert fmean(request.output_tokens for request in requests) == pytest.approx(154, rel=0.08)


def test_unique_prompts_take_their_lengths_from_traces() -> None:
    """Of several traces, from all."""
    given_ = (trace(0.0), Trace("u", "azure", 512, (SimRequest(0.0, 9, 3, ()),)))
    requests = make(RECIPES["uniq"], Order(10.0, 50, 1, given_)).requests
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(1024, 10), (9, 3)}


def test_bursts_keep_the_mean_rate() -> None:
    """In a burst more than six times as many come as in the calm."""
    steady = [SimRequest(number / 100, 1, 1, ()) for number in range(60_000)]
    bent = shaping.bursty(steady, Random(3))
    assert bent[-1].at == pytest.approx(steady[-1].at, rel=0.03)
    seconds = [0] * 500
    for request in bent:
        if request.at < 500:
            seconds[int(request.at)] += 1
    assert (min(seconds), max(seconds)) == (pytest.approx(42, abs=1), pytest.approx(260, abs=1))
    assert sum(count > 150 for count in seconds) / 500 == pytest.approx(8 / 30, abs=0.03)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=50), st.integers(0, 1000))
def test_bending_time_keeps_the_order(times: list[float], seed: int) -> None:
    """Whatever the phase, later stays later and nothing comes before the start."""
    bent = shaping.bursty([SimRequest(at, 1, 1, ()) for at in sorted(times)], Random(seed))
    assert all(one.at <= other.at + 1e-6 for one, other in pairwise(bent))
    assert bent[0].at >= -1e-6


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(10, 400), st.integers(0, 1000))
def test_windows_never_take_a_request_twice(windows: int, count: int, seed: int) -> None:
    """They take about as many as were wanted, in order."""
    taken = shaping.overlaid(STEADY.requests, windows, count, Random(seed))
    numbers = [request.blocks[1] for request in taken]
    assert len(set(numbers)) == len(numbers)
    assert len(taken) == pytest.approx(count, abs=windows + 1)
    assert all(one.at <= other.at for one, other in pairwise(taken))


def test_windows_keep_pauses_within_a_conversation() -> None:
    """Two windows double the rate without any time being squeezed."""
    taken = shaping.overlaid(STEADY.requests, 2, 200, Random(1))
    assert taken[-1].at == pytest.approx(100, abs=2)


def test_ticks_of_a_coarse_clock_are_spread() -> None:
    """Requests of one time stamp come at random times until the next one; a fine clock is left alone."""
    coarse = trace(*[0.0] * 5, *[3.0] * 5, *[6.0] * 5)
    spread = shaping.spread(coarse.requests, Random(1))
    assert len({request.at for request in spread}) == 15
    assert [request.at // 3 for request in spread] == [0] * 5 + [1] * 5 + [2] * 5
    fine = trace(0.0, 1.0, 1.0, 2.0)
    assert tuple(shaping.spread(fine.requests, Random(1))) == fine.requests


def test_load_scales_the_time_of_a_trace() -> None:
    """Twice the load comes twice as fast."""
    made = from_trace(STEADY, load=2.0, rate=None, seed=1)
    assert (made.name, made.requests[-1].at) == ("t", 399 / 2)


def test_a_rate_is_an_average() -> None:
    """It goes before the load."""
    made = from_trace(STEADY, load=9.0, rate=4.0, seed=1)
    assert len(made.requests) / shaping.duration(made.requests) == pytest.approx(4.0)


def test_a_trace_without_times_needs_a_rate() -> None:
    """Then its requests come as a Poisson process."""
    untimed = trace(float("nan"), float("nan"))
    with pytest.raises(ConfigError, match="--rate: the trace has no times"):
        from_trace(untimed, load=1.0, rate=None, seed=1)
    assert from_trace(untimed, load=1.0, rate=5.0, seed=1).requests[1].at > 0


def test_all_at_once_stays_at_once() -> None:
    """There is no rate to scale."""
    assert [request.at for request in from_trace(trace(0.0, 0.0), load=1.0, rate=4.0, seed=1).requests] == [0.0, 0.0]


def test_windows_need_times() -> None:
    """A trace of bodies without times has no windows."""
    with pytest.raises(ConfigError, match="no times, so no windows"):
        make(RECIPES["conv"], Order(1.0, 10, 1, (trace(float("nan")),)))


def test_the_rate_of_bursts_depends_on_what_is_modulated() -> None:
    """Long conversations are more work than Azure's prompts."""
    assert RECIPES["bursty"].full_rate(()) > RECIPES["bursty"].full_rate((STEADY,)) == 0.75
    assert RECIPES["uniq"].full_rate((STEADY,)) == RECIPES["uniq"].full_rate(()) == 17.0


def test_quantiles_stay_within_their_classes() -> None:
    """No length is below the shortest or above the longest of its class."""
    lengths = generators.unique(1.0, 5000, Random(5))
    assert min(request.prompt_tokens for request in lengths) >= 2
    assert max(request.prompt_tokens for request in lengths) <= 14_050


def test_what_no_engine_can_hold_is_left_out_with_what_follows() -> None:
    """Memory is counted in whole blocks; those that stay wait for the same requests as before."""
    lengths = [(400, None), (1000, None), (300, 1), (200, 0), (100, 3)]
    requests = tuple(SimRequest(0.0, length, 100, (), after=after) for length, after in lengths)
    left, count = fitting(Workload("w", 512, requests), 1535)
    assert [(request.prompt_tokens, request.after) for request in left.requests] == [(400, None), (200, 0), (100, 1)]
    assert count == 2
