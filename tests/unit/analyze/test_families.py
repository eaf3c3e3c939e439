"""Prefixes that many prompts begin with."""

from __future__ import annotations

import random

import pytest

from ext_proc.analyze.families import Family, FamilyCounter


def counted(chains: list[list[int]], kept: int = 100_000) -> FamilyCounter:
    """Count chains of blocks of 100 tokens."""
    counter = FamilyCounter(kept)
    for chain in chains:
        counter.add(chain, [100] * len(chain))
    return counter


def found(chains: list[list[int]], **options: int) -> list[Family]:
    """Return the families of chains."""
    return counted(chains, **options).families(10, sum(100 * len(chain) for chain in chains))


def test_a_system_prompt_is_one_family() -> None:
    """Ten prompts that share three blocks and nothing else are one family of 300 tokens."""
    (family,) = found([[1, 2, 3, 100 + number] for number in range(10)])
    assert family == Family(300, 10, 1.0, 9 * 300 / 4000, "0000000000000003")


def test_nested_families_are_told_apart() -> None:
    """Two templates behind one preamble: three families, and no repeated token counts twice."""
    chains = [[1, 10 + number % 2, 20 + number % 2, 100 + number] for number in range(20)]
    families = {family.prefix_tokens: family for family in found(chains)}
    assert set(families) == {100, 300}
    assert [family.requests for family in found(chains)].count(10) == 2
    assert families[100].repeated_share == pytest.approx(19 * 100 / 8000)
    assert families[300].repeated_share == pytest.approx(9 * 200 / 8000)


def test_a_growing_conversation_is_no_family() -> None:
    """Its turns thin out one by one; nobody else shares them."""
    assert found([list(range(1, 2 * turn)) for turn in range(1, 30)]) == []


def test_equal_prompts_are_a_family() -> None:
    """Prompts that are sent again whole are worth knowing of."""
    (family,) = found([[1, 2]] * 3)
    assert (family.prefix_tokens, family.requests) == (200, 3)


def test_no_text_is_kept_unless_it_may_be_shown() -> None:
    """Excerpts are bounded and printable."""
    prompt = b"\xffsystem\xfe" + b"Be terse.\x1b[31m " * 40
    for show in (False, True):
        counter = FamilyCounter(show=show)
        for number in range(3):
            counter.add([1, 50 + number], [100, 50], prompt)
        (family,) = counter.families(1, 450)
        assert ("Be terse." in family.excerpt) is show
        assert len(family.excerpt) < 400
        assert family.excerpt.isprintable()


def test_memory_is_bounded_and_hot_prefixes_survive() -> None:
    """Of a hundred times as many blocks as are kept, those of the hot prefix are still there."""
    generator = random.Random(1)
    chains = [
        [7, 8, generator.getrandbits(64), generator.getrandbits(64)] if number % 4 == 0 else [generator.getrandbits(64)]
        for number in range(40_000)
    ]
    counter = FamilyCounter(500)
    for chain in chains:
        counter.add(chain, [100] * len(chain))
        assert len(counter) <= 500
    best, *_ = counter.families(3, 1)
    assert best.prefix_tokens == 200
    assert 10_000 - counter.missed <= best.requests <= 10_000
    assert counter.missed < 1000


def test_a_trace_that_contradicts_itself_is_survived() -> None:
    """Blocks that follow each other in both orders are no tree, and no reason to hang."""
    generator = random.Random(4)
    counter = FamilyCounter(10)
    for _ in range(2000):
        counter.add([generator.randrange(12) for _ in range(4)], [100] * 4)
        counter.families(5, 1000)
    assert len(counter) <= 10


def test_a_prefix_that_becomes_hot_late_is_found() -> None:
    """It is kept as long as it may be as frequent as those that are kept."""
    generator, counter = random.Random(5), FamilyCounter(300)
    for number in range(20_000):
        hot = [7, 8] if number > 10_000 and number % 20 == 0 else []
        chain = [*hot, generator.getrandbits(64)]
        counter.add(chain, [100] * len(chain))
    best, *_ = counter.families(3, 1)
    assert best.prefix_tokens == 200
    assert 499 - counter.missed <= best.requests <= 499
