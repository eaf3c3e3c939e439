"""The cache of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sources.token_cache import TokenCache


def test_the_last_used_stay() -> None:
    """What was asked for lately outlives what was put in later."""
    cache: TokenCache[str] = TokenCache(300)
    cache.put("a", "A", 68)
    cache.put("b", "B", 68)
    assert cache.get("a") == "A"
    cache.put("c", "C", 100)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    """One huge prompt does not push out everything else."""
    cache: TokenCache[str] = TokenCache(300)
    cache.put("a", "A", 68)
    cache.put("huge", "H", 1_000)
    assert (cache.get("a"), cache.get("huge")) == ("A", None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), max_size=40))
def test_the_bound_holds(puts: list[tuple[int, int]]) -> None:
    """Whatever is put in, also twice, the sum is that of what is kept, and within the bound."""
    cache: TokenCache[int] = TokenCache(500)
    weights: dict[int, int] = {}
    for key, tokens in puts:
        cache.put(key, tokens, tokens)
        weights[key] = tokens + 32
    kept = [weights[key] for key in weights if cache.get(key) is not None]
    assert (cache.tokens, len(cache)) == (sum(kept), len(kept))
    assert cache.tokens <= 500
