"""Engines that are told which of their data-parallel ranks is to answer."""

from __future__ import annotations

import msgspec
import pytest

from ext_proc.core.kv_events import Batch, BlocksStored
from ext_proc.core.kv_feed import KvFeed
from ext_proc.core.model import Api, Decision, Endpoint, InferenceRequest, Operation
from ext_proc.core.prefill import Prefill
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import TokenHits, TokenPrompt

SIZE = 4
TOKENS = list(range(41))
LONG = TokenPrompt(TokenHasher(SIZE).chain(TOKENS), len(TOKENS))
PREFILL = Prefill(tokens=41, uncached=41, work=41, seconds=0.41)


def feeds(index: ResidentIndex, slot: int, ranks: int, *, is_pinned: bool = True) -> list[KvFeed]:
    """Listen to the ranks of an engine, none of which holds anything."""
    made = [index.feed(slot, rank, is_pinned=is_pinned) for rank in range(ranks)]
    for feed in made:
        feed.asking()
        feed.asked(is_answered=True)
    return made


def store(feed: KvFeed, blocks: int, number: int = 0) -> None:
    """Have a rank report that it holds the first blocks of the long prompt; ranks name themselves as they like."""
    event = BlocksStored(hashes=list(range(blocks)), tokens=TOKENS[: blocks * SIZE], block_tokens=SIZE)
    feed.receive(number, Batch([event], rank=0))


def decision(*slots: int, exact: bool = True) -> Decision:
    """Make a decision for endpoints of which nothing is predicted yet."""
    endpoints = tuple(Endpoint(address=f"10.0.0.{slot}:1", pool="p", slot=slot) for slot in slots)
    request = InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI)
    return Decision(
        id="d", endpoints=endpoints, request=request, chain_length=0, hit_tokens=7, reason="wait", strategy="s",
        terms=(), filters=(), decided_at=0.0, fallback_hits=(7,) * (len(slots) - 1), exact=(exact,) * len(slots),
    )  # fmt: skip


def test_an_engine_counts_as_the_best_of_its_ranks() -> None:
    """One that chooses by itself counts as their mean, since nobody knows which it will be."""
    index = ResidentIndex()
    pinned, choosing = feeds(index, 0, 2), feeds(index, 1, 2, is_pinned=False)
    for of_engine in (pinned, choosing):
        store(of_engine[0], 2)
        store(of_engine[1], 6)
    assert index.tokens_held(LONG.chain, [0, 1]) == [24, 16]
    assert index.tokens_by_rank(LONG.chain, 0) == [8, 24]
    assert (index.ranks(0), index.ranks(1), index.ranks(2)) == (2, 0, 0)


def test_the_rank_that_holds_most_is_named_and_predicted() -> None:
    """Its port says which it is, whatever its messages call it; fallbacks are asked for the same rank."""
    index = ResidentIndex()
    store(feeds(index, 0, 3)[2], 5)
    other = feeds(index, 1, 3)
    store(other[0], 9)
    store(other[2], 1)
    made, _ = TokenHits(index).pinned(decision(0, 1), LONG, PREFILL, 0.0)
    assert (made.rank, made.hit_tokens, made.fallback_hits) == (2, 20, (4,))


def test_siblings_of_a_burst_meet_on_one_rank_and_others_are_spread() -> None:
    """Before any report, what was sent to a rank counts as held there; where nothing is held the ranks take turns."""
    index = ResidentIndex()
    feeds(index, 0, 2)
    hits, ranks = TokenHits(index), []
    for number in range(4):
        tokens = TOKENS if number % 2 == 0 else [100 + number, *TOKENS]
        prompt = TokenPrompt(TokenHasher(SIZE).chain(tokens), len(tokens))
        made, _ = hits.pinned(decision(0), prompt, PREFILL, 0.0)
        hits.sent(str(number), 0, prompt, 0.0, PREFILL, made.rank)
        ranks.append((made.rank, made.hit_tokens))
        hits.ended(str(number), 0.0, computed=True)
    assert ranks == [(0, 0), (1, 0), (0, 40), (1, 0)]


def test_a_hot_rank_is_left_alone_at_last() -> None:
    """What a rank holds does not draw everything there: its queue grows by each prefill, and others idle."""
    index = ResidentIndex()
    store(feeds(index, 0, 2)[0], 2)
    hits = TokenHits(index)
    ranks = []
    for number in range(6):
        made, _ = hits.pinned(decision(0), LONG, PREFILL, 0.0)
        ranks.append(made.rank)
        hits.sent(str(number), 0, LONG, 0.0, PREFILL, made.rank)
    assert set(ranks) == {0, 1}


def test_no_rank_is_named_that_some_endpoint_does_not_have() -> None:
    """A retry elsewhere carries the same header; and what is not known by tokens is left to the engine."""
    index = ResidentIndex()
    store(feeds(index, 0, 3)[2], 5)
    feeds(index, 1, 2)
    feeds(index, 2, 1, is_pinned=False)
    hits = TokenHits(index)
    assert hits.pinned(decision(0, 1), LONG, PREFILL, 0.0)[0].rank in (0, 1)
    for plain in (
        decision(0, 2),
        decision(2),
        decision(0, exact=False),
        msgspec.structs.replace(decision(0), exact=()),
    ):
        assert hits.pinned(plain, LONG, PREFILL, 0.0) == (plain, PREFILL)


def test_while_a_rank_is_not_heard_the_engine_chooses() -> None:
    """It may not exist, and a request for it would be refused; till then the engine counts as the mean of its ranks."""
    index = ResidentIndex()
    first = index.feed(0, 0, is_pinned=True)
    second = index.feed(0, 1, is_pinned=True)
    store(first, 4)
    hits, plain = TokenHits(index), decision(0)
    assert hits.pinned(plain, LONG, PREFILL, 0.0) == (plain, PREFILL)
    assert index.tokens_held(LONG.chain, [0]) == [8]
    store(second, 1)
    assert (hits.pinned(plain, LONG, PREFILL, 0.0)[0].rank, index.tokens_held(LONG.chain, [0])) == (0, [16])
    second.mistrust()
    assert hits.pinned(plain, LONG, PREFILL, 0.0) == (plain, PREFILL)


def test_what_was_sent_without_a_rank_is_held_by_one_that_nobody_knows() -> None:
    """An engine that chooses by itself counts as the mean of its ranks before its reports as after them."""
    index = ResidentIndex()
    pinned, _ = feeds(index, 0, 2), feeds(index, 1, 2, is_pinned=False)
    hits = TokenHits(index)
    pinned[1].mistrust()
    for slot in (0, 1):
        hits.sent(f"{slot}", slot, LONG, 0.0, PREFILL)
    assert hits.held(LONG, [0, 1], 0.0) == [20, 20]
    store(pinned[1], 0)
    made, _ = hits.pinned(decision(0), LONG, PREFILL, 0.0)
    assert (made.rank, made.hit_tokens) == (0, 0)
    hits.sent("named", 0, LONG, 0.0, PREFILL, made.rank)
    assert hits.held(LONG, [0, 1], 0.0) == [40, 20]
    for name in ("0", "1", "named"):
        hits.ended(name, 0.0, computed=False)
    assert hits.held(LONG, [0, 1], 0.0) == [0, 0]


def test_a_rank_without_a_strategy_that_counts_seconds() -> None:
    """Then tokens are priced at a usual speed, and what is held still decides."""
    index = ResidentIndex()
    store(feeds(index, 0, 2)[1], 5)
    assert TokenHits(index).pinned(decision(0), LONG, Prefill(), 0.0)[0].rank == 1


def test_what_the_named_rank_has_to_compute_is_what_is_booked() -> None:
    """If the rank that holds the prompt is too busy, another one computes all of it, and that is predicted."""
    index = ResidentIndex()
    store(feeds(index, 0, 2)[0], 10)
    hits = TokenHits(index)
    best = Prefill(tokens=41, uncached=16, work=16.1, seconds=1.61, attention=24_000)
    ranks = []
    for number in range(4):
        made, prefill = hits.pinned(decision(0), LONG, best, 0.0)
        assert prefill.uncached == max(41 - made.hit_tokens, 16)
        assert prefill.rate == pytest.approx(best.rate)
        assert (prefill.seconds > best.seconds) == (made.hit_tokens < 40)
        ranks.append(made.rank)
        hits.sent(str(number), 0, LONG, 0.0, prefill, made.rank)
    assert 1 in ranks
