"""The hash chain over a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from ext_proc.core.hashing import BlockSizes, PromptHasher
from tests.unit.core.builders import request, text

SMALL = PromptHasher(BlockSizes(((4, 16), (8, 32)), 16))
PARTS = st.lists(st.text(max_size=4), min_size=1, max_size=4)


def test_blocks_grow_along_the_prompt() -> None:
    """The first blocks are small, later ones middle-sized, and all after that large."""
    assert [SMALL.end(blocks) for blocks in range(9)] == [0, 4, 8, 12, 16, 24, 32, 48, 64]


def test_tokens_of_blocks_follow_their_bytes() -> None:
    """Blocks count for a quarter of the bytes they cover, wherever they end."""
    hasher = PromptHasher()
    assert [hasher.tokens(blocks) for blocks in range(200)] == [hasher.end(blocks) // 4 for blocks in range(200)]


@given(st.binary(max_size=200))
def test_only_whole_blocks_are_hashed(prompt: bytes) -> None:
    """The chain is as long as the number of blocks that fit into the prompt."""
    length = len(SMALL.chain(request(prompt)))
    assert SMALL.end(length) <= len(prompt) < SMALL.end(length + 1)


@given(st.lists(st.tuples(st.sampled_from([0, 300, 500]), st.integers(4, 900), st.sampled_from("mn")), max_size=12))
def test_what_is_known_of_other_prompts_changes_no_hash(prompts: list[tuple[int, int, str]]) -> None:
    """A chain is that of its own blocks, each seeded with the one before, whatever was hashed before it."""
    hasher = PromptHasher(BlockSizes(((4, 16), (8, 32)), 16), kept=3)
    for shared, length, model in prompts:
        prompt = (bytes(range(250)) * 4)[: min(shared, length)].ljust(length, b"x")
        expected = hasher.chain(request(prompt[:4], model=model))
        while hasher.end(len(expected) + 1) <= length:
            block = prompt[hasher.end(len(expected)) : hasher.end(len(expected) + 1)]
            expected.append(xxh3_64_intdigest(block, expected[-1]))
        for _ in range(3):
            assert hasher.chain(request(prompt, model=model)) == expected


def test_equal_pieces_behind_different_ones_hash_differently() -> None:
    """A piece is known by all that stands before it, too."""
    hasher = PromptHasher()
    chains = [hasher.chain(request(b"a" * 5000 + letter + b"a" * 40_000)) for letter in (b"b", b"c") for _ in range(3)]
    assert [len({chain[place] for chain in chains}) for place in (10, 20, 40)] == [1, 2, 2]


@pytest.mark.parametrize("blocks", [74, 80, 1023, 1024, 1025, 1100])
def test_long_prompts_are_hashed_to_their_last_block(blocks: int) -> None:
    """Where blocks stop to grow, and where their places are not looked up any more, none is lost or hashed twice."""
    hasher = PromptHasher()
    prompt = bytes(range(251)) * (hasher.end(blocks) // 251 + 1)
    for end in (hasher.end(blocks), hasher.end(blocks + 1) - 1):
        for _ in range(3):
            chain = hasher.chain(request(prompt[:end]))
            last = prompt[hasher.end(blocks - 1) : hasher.end(blocks)]
            assert [len(chain), chain[-1]] == [blocks, xxh3_64_intdigest(last, chain[-2])]


def test_what_is_known_of_a_long_prompt_does_not_end_it() -> None:
    """Blocks behind those whose places are looked up are counted and hashed, though all before them are known."""
    hasher = PromptHasher()
    prompt = request(bytes(range(251)) * (hasher.end(1100) // 251 + 1))
    first = hasher.chain(prompt)
    assert len(first) >= 1100
    assert all(hasher.chain(prompt) == first for _ in range(66))


def test_steps_that_reach_far_are_counted_to_their_end() -> None:
    """However many blocks grow, those behind them are counted too."""
    hasher = PromptHasher(BlockSizes(((4, 8000),), 16))
    assert [len(hasher.chain(request(bytes(8000 + more)))) for more in (0, 15, 16, 33)] == [2000, 2000, 2001, 2002]


def test_a_prompt_adds_one_piece_up_to_a_bound() -> None:
    """Of each prompt the first piece is kept that was not known, in two generations of so many."""
    hasher, sizes = PromptHasher(kept=3), []
    for letter in "aaaabcdabefg":
        hasher.chain(request(letter.encode() * 60_000))
        sizes.append(hasher.pieces)
    assert sizes[:6] == [1, 2, 3, 4, 5, 6]
    assert max(sizes) == 6


@pytest.mark.parametrize("blocks", range(1, 10))
def test_a_block_counts_from_its_last_byte_on(blocks: int) -> None:
    """A prompt that ends with a block has that block; one byte less and it has not."""
    prompt = b"x" * SMALL.end(blocks)
    assert [len(SMALL.chain(request(prompt))), len(SMALL.chain(request(prompt[:-1])))] == [blocks, blocks - 1]


@given(st.binary(max_size=100), st.binary(max_size=60), st.binary(max_size=60))
def test_chains_agree_as_far_as_prompts_do(shared: bytes, one: bytes, other: bytes) -> None:
    """Two prompts have the same hashes for the blocks that lie in their common prefix, and none after it."""
    first, second = SMALL.chain(request(shared + one)), SMALL.chain(request(shared + other))
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        end = SMALL.end(place + 1)
        assert (a == b) == ((shared + one)[:end] == (shared + other)[:end])


def test_equal_blocks_at_different_places_hash_differently() -> None:
    """A hash stands for everything before the block too."""
    chain = PromptHasher().chain(request(b"x" * 100_000))
    assert len(set(chain)) == len(chain)


@given(PARTS, PARTS)
def test_h08_namespaces_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    """Two caches share hashes only if model and every part of the namespace are equal (H08)."""
    chains = [SMALL.chain(request(b"abcd", model=model, namespace=tuple(rest))) for model, *rest in (one, other)]
    assert (chains[0] == chains[1]) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "bc"), ("ab", "c")), (("X",), ("", "X")), (("m", "x\0y"), ("m", "x", "y"))],
    ids=["moved border", "adapter or salt", "separator inside"],
)
def test_h08_framing_of_the_namespace(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Parts that are equal when written one after the other stay apart (H08)."""
    chains = [SMALL.chain(request(b"abcd", model=model, namespace=tuple(rest))) for model, *rest in (one, other)]
    assert chains[0] != chains[1]


def test_lone_surrogates_in_names_are_hashed() -> None:
    """A model name or salt that is no valid text makes a chain like any other."""
    assert SMALL.chain(request(b"abcd", model="\ud800", namespace=("\udfff",)))


def test_the_sole_model_stands_in_for_a_missing_one() -> None:
    """A request without a model shares the cache of the model that is served."""
    prompt = text("a")
    assert PromptHasher().chain(request(prompt, model=None), "m") == PromptHasher().chain(request(prompt, model="m"))
