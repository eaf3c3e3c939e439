"""The live estimate of how much of the traffic repeats."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ext_proc.core.hashing import PromptHasher
from ext_proc.core.reuse import ReuseMeter
from tests.unit.core.builders import Fleet, request, text

Chain = list[int]

HASHER = PromptHasher()


def meter(**bounds: int) -> ReuseMeter:
    """Make a meter for chains of the usual hasher."""
    return ReuseMeter(HASHER.tokens, **bounds)


def tokens(chain: Chain) -> int:
    """Return the tokens of a prompt that ends with its last block."""
    return HASHER.tokens(len(chain))


def conversations(seed: int, count: int, system: int = 8) -> Iterator[Chain]:
    """Give the turns of conversations behind one of four system prompts, interleaved."""
    generator = random.Random(seed)
    systems = [[generator.getrandbits(64) for _ in range(system)] for _ in range(4)]
    open_ones = [list(systems[number % 4]) for number in range(count)]
    for turn in range(4):
        for chain in open_ones:
            chain += [generator.getrandbits(64) for _ in range(3 + turn)]
            yield list(chain)


def exact(chains: list[Chain]) -> float:
    """Return the share of tokens in blocks that were there before, by remembering everything."""
    seen: set[int] = set()
    known = total = 0
    for chain in chains:
        held = next((place for place, block in enumerate(chain) if block not in seen), len(chain))
        known += tokens(chain[:held])
        total += tokens(chain)
        seen.update(chain)
    return known / total


def test_nothing_is_said_before_there_was_a_prompt() -> None:
    """A gauge without data is absent, not zero."""
    assert meter().ratio() is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("system", [0, 8, 30])
def test_the_estimate_is_near_the_truth(seed: int, system: int) -> None:
    """Sampling costs a few hundredths."""
    chains = list(conversations(seed, 1500, system))
    measured = meter()
    for chain in chains:
        measured.add(chain, tokens(chain))
    assert measured.ratio() == pytest.approx(exact(chains), abs=0.04)


def test_traffic_that_never_repeats_reads_about_zero() -> None:
    """Unique prompts are new in each block."""
    generator, measured = random.Random(3), meter()
    for _ in range(5000):
        chain = [generator.getrandbits(64) for _ in range(20)]
        measured.add(chain, tokens(chain))
    assert measured.ratio() == pytest.approx(0.0, abs=0.05)


def test_one_prompt_over_and_over_reads_about_one() -> None:
    """Which of its blocks are sampled does not matter."""
    for seed in range(20):
        generator, measured = random.Random(seed), meter()
        chain = [generator.getrandbits(64) for _ in range(10)]
        for _ in range(1000):
            measured.add(chain, tokens(chain))
        assert measured.ratio() == pytest.approx(1.0, abs=0.05)


def test_prompts_without_a_whole_block_count_as_new() -> None:
    """They are part of the traffic though nothing of them is remembered."""
    measured = meter()
    measured.add([], 40)
    assert measured.ratio() == 0.0


def test_memory_is_bounded() -> None:
    """Ten thousand times as many blocks do not make it remember more than two generations."""
    generator, measured = random.Random(5), meter(remembered=100)
    for _ in range(20_000):
        measured.add([generator.getrandbits(64) for _ in range(10)], 1000)
    assert 100 <= len(measured) <= 200


def test_the_past_fades() -> None:
    """After a change of the traffic the estimate follows."""
    generator, measured = random.Random(6), meter(window=200_000)
    for _ in range(2000):
        measured.add([generator.getrandbits(64) for _ in range(10)], 1024)
    chain = [generator.getrandbits(64) for _ in range(10)]
    for _ in range(3000):
        measured.add(chain, tokens(chain))
    ratio = measured.ratio()
    assert ratio is not None
    assert ratio > 0.95


def test_the_picker_feeds_it() -> None:
    """Each decision with a prompt counts; one prompt sent again and again is seen to repeat."""
    fleet = Fleet()
    assert fleet.picker.reuse.ratio() is None
    for _ in range(200):
        fleet.serve(request(text("same")))
    ratio = fleet.picker.reuse.ratio()
    assert ratio is not None
    assert ratio > 0.9


def test_what_an_engine_holds_was_seen_before() -> None:
    """Blocks that the index knows need no look; those behind them do, in whatever way the prompt grew."""
    generator, measured = random.Random(8), meter()
    for _ in range(4000):
        chain = [generator.getrandbits(64) for _ in range(10)]
        measured.add(chain, tokens(chain), 5)
    assert measured.ratio() == pytest.approx(tokens([0] * 5) / tokens([0] * 10), abs=0.05)


def test_what_left_the_young_generation_is_still_known() -> None:
    """A round of prompts a little larger than one generation is recognised by means of the older one."""
    generator, measured = random.Random(9), meter(remembered=100)
    chains = [[generator.getrandbits(64) for _ in range(10)] for _ in range(190)]
    for _ in range(30):
        for chain in chains:
            measured.add(chain, tokens(chain))
    ratio = measured.ratio()
    assert ratio is not None
    assert ratio > 0.5
