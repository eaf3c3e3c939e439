"""The stand-in tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sim import tokens


@given(st.binary(max_size=200))
def test_there_is_one_id_for_each_token(prompt: bytes) -> None:
    """Counting tokens and listing their ids agree."""
    assert len(tokens.to_ids(prompt)) == tokens.count_tokens(prompt)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=100))
def test_ids_turn_back_into_the_text(text: str) -> None:
    """Text survives the way to token ids and back."""
    assert tokens.to_text(tokens.to_ids(text.encode())) == text


@given(st.lists(st.integers(0, tokens.MAX_TOKEN_ID)))
def test_a_prompt_of_ids_is_exact(ids: list[int]) -> None:
    """A prompt given as token ids has exactly those tokens."""
    assert tokens.to_ids(tokens.from_ids(ids)) == ids


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [1.5], [None]], ids=repr)
def test_what_is_no_token_id_is_refused(ids: list[object]) -> None:
    """Numbers out of range and other types are a ValueError."""
    with pytest.raises(ValueError, match="token ids"):
        tokens.from_ids(ids)


@given(st.binary(max_size=600), st.binary(max_size=200), st.integers(1, 32))
def test_a_longer_prompt_has_the_chain_of_its_prefix(prompt: bytes, more: bytes, block_size: int) -> None:
    """Appending to a prompt never changes the hashes of the blocks that were full before."""
    chain = tokens.hash_chain(prompt, block_size, 7)
    assert len(chain) == len(prompt) // (block_size * tokens.TOKEN_BYTES)
    assert tokens.hash_chain(prompt + more, block_size, 7)[: len(chain)] == chain


def test_a_hash_depends_on_all_blocks_before() -> None:
    """Equal blocks behind different beginnings have different hashes."""
    one = tokens.hash_chain(b"a" * 64 + b"same" * 16, 16, 0)
    other = tokens.hash_chain(b"b" * 64 + b"same" * 16, 16, 0)
    assert one[1] != other[1]


def test_models_and_salts_have_chains_of_their_own() -> None:
    """No two pairs of model and salt start a chain alike."""
    pairs = [("m", ""), ("m", "s"), ("ms", ""), ("n", "")]
    assert len({tokens.cache_seed(*pair) for pair in pairs}) == len(pairs)


@given(st.integers(0, 2**64 - 1), st.integers(0, 9000))
def test_an_answer_has_four_letters_for_each_token(digest: int, length: int) -> None:
    """Answers have exactly the tokens that were asked for, also very long ones."""
    text = tokens.answer_text(digest, length)
    assert tokens.count_tokens(text.encode()) == length
    assert len(text.encode()) == 4 * length


@given(st.integers(0, 2**64 - 1))
def test_the_natural_length_is_between_16_and_64(digest: int) -> None:
    """The model stops by itself after 16 to 64 tokens."""
    assert 16 <= tokens.natural_length(digest) <= 64
