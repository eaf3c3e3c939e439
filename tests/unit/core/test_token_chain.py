"""Hash chains over token ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import LARGEST_TOKEN, TokenHasher, distinguished, root

TOKENS = st.lists(st.integers(0, LARGEST_TOKEN), max_size=40)
NAMES = st.text(max_size=4)


@settings(deadline=None)
@given(TOKENS, TOKENS, st.integers(1, 8))
def test_links_are_equal_exactly_as_far_as_the_tokens_are(first: list[int], second: list[int], size: int) -> None:
    """Two prompts share a link for each whole block of tokens that they share, and none behind it."""
    hasher = TokenHasher(size)
    one, other = hasher.chain(first).hashes, hasher.chain(second).hashes
    assert (len(one), len(other)) == (len(first) // size, len(second) // size)
    for place, (left, right) in enumerate(zip(one, other, strict=False), 1):
        assert (left == right) == (first[: place * size] == second[: place * size])


@settings(deadline=None)
@given(TOKENS, st.integers(1, 8), st.integers(0, 40))
def test_a_chain_can_be_continued(tokens: list[int], size: int, cut: int) -> None:
    """What follows a link hashes as if the whole prompt had come at once; an engine reports in pieces."""
    hasher = TokenHasher(size)
    whole = list(hasher.chain(tokens).hashes)
    blocks = min(cut, len(whole))
    parent = whole[blocks - 1] if blocks else root()
    assert whole[:blocks] + hasher.links(tokens[blocks * size :], parent) == whole


@settings(deadline=None)
@given(NAMES, NAMES, NAMES, NAMES)
def test_adapters_and_salts_do_not_meet(adapter: str, salt: str, other_adapter: str, other_salt: str) -> None:
    """Only the same adapter with the same salt begins at the same place (H08)."""
    same = (adapter, salt) == (other_adapter, other_salt)
    assert (root(adapter, salt) == root(other_adapter, other_salt)) == same


def test_what_else_a_block_depends_on_sets_it_apart() -> None:
    """The same tokens with an image before them, or with another one, are other blocks."""
    assert len({5, distinguished(5, b"image"), distinguished(5, b"other"), distinguished(6, b"image")}) == 4


@pytest.mark.parametrize("token", [-1, LARGEST_TOKEN + 1, 1.5, "1"])
def test_a_token_that_is_none_is_refused(token: int) -> None:
    """Whoever hands over no token ids learns of it."""
    with pytest.raises(ValueError, match="token id"):
        TokenHasher(1).chain([token])


def test_only_an_engine_that_reports_blocks_of_that_size_can_tell() -> None:
    """A chain is compared with reports of the same block size; who is known and has reported none yet holds nothing."""
    index, chain = ResidentIndex(), TokenHasher(2).chain([1, 2, 3, 4, 5, 6])
    for slot, size in ((0, 2), (1, 3), (2, None)):
        index.add(slot, size)
        index.stored(slot, chain.hashes[:2] if size else ())
    assert index.tokens_held(chain, [0, 1, 2, 3]) == [4, None, 0, None]
    assert index.tokens_held(TokenHasher(2).chain([1]), [0]) == [0]
    assert [index.block_tokens(slot) for slot in (0, 2, 3)] == [2, None, None]
