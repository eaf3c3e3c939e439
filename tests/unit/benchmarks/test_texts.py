"""Prompts of text that share what their block ids share."""

from __future__ import annotations

from itertools import combinations, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.texts import Texts, body
from ext_proc.core.hashing import BlockSizes, PromptHasher
from ext_proc.core.model import InferenceRequest
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.replay.workloads import RECIPES, Order, make
from ext_proc.sim.tokens import TOKEN_BYTES, answer_text, count_tokens, hash_chain
from ext_proc.sim.workload import SimRequest, Workload

BLOCK = 16
PATH = "/v1/completions"


def common(one: tuple[int, ...] | list[int], other: tuple[int, ...] | list[int]) -> int:
    """Return how many leading items two chains share."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw requests with few different block ids, so that many prefixes are shared, and tails of less than a block."""
    chains = draw(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=2, max_size=6))
    tails = draw(st.lists(st.integers(0, BLOCK - 1), min_size=len(chains), max_size=len(chains)))
    made = [
        SimRequest(0.0, max(BLOCK * len(chain) + tail, 1), 1, tuple(chain))
        for chain, tail in zip(chains, tails, strict=True)
    ]
    return Workload("drawn", BLOCK, tuple(made))


@given(workloads())
def test_engines_find_in_the_text_what_the_ids_share(workload: Workload) -> None:
    """The engine's chain of hashes over two prompts is equal for as many blocks as their ids are."""
    texts = Texts(workload)
    chains = [hash_chain(texts.prompt(place).encode(), BLOCK, 0) for place in range(len(workload.requests))]
    for (one, left), (other, right) in combinations(zip(workload.requests, chains, strict=True), 2):
        assert common(left, right) == common(one.blocks, other.blocks)


def understood(prompt: str, request: SimRequest) -> InferenceRequest:
    """Return what the picker makes of the body that is sent."""
    route = classify("POST", PATH)
    assert route is not None
    return parse(route, RequestHead(path=PATH), body(prompt, request), complete=True)


@given(workloads())
def test_the_picker_finds_in_the_text_what_the_ids_share(workload: Workload) -> None:
    """So is the picker's over the body that carries the prompt, where its blocks are as large."""
    texts, size = Texts(workload), BLOCK * TOKEN_BYTES
    hasher = PromptHasher(BlockSizes(((size, size),), size))
    requests = workload.requests
    chains = [hasher.chain(understood(texts.prompt(place), request)) for place, request in enumerate(requests)]
    for (one, left), (other, right) in combinations(zip(requests, chains, strict=True), 2):
        assert common(left, right) == common(one.blocks, other.blocks)


@pytest.mark.parametrize("session", ["", "session-3"])
def test_the_picker_knows_of_a_request_what_the_simulator_tells_it(session: str) -> None:
    """Tokens, session, and that it is a stream; the length of the answer besides."""
    request = SimRequest(0.0, 100, 7, (1, 2), session=session)
    seen = understood(Texts(Workload("w", BLOCK, (request,))).prompt(0), request)
    assert (seen.prompt_tokens, seen.session, seen.stream, seen.output_tokens) == (100, session, True, 7)


@given(workloads())
def test_prompts_are_as_long_as_the_workload_says(workload: Workload) -> None:
    """Counted as the simulated engine counts."""
    texts = Texts(workload)
    for place, request in enumerate(workload.requests):
        assert count_tokens(texts.prompt(place).encode()) == request.prompt_tokens


def test_conversations_share_their_history_with_its_answers() -> None:
    """Prompt and answer of each turn are found again, block by block, exactly where the ids of a chat say so."""
    workload = make(RECIPES["chat"], Order(5.0, 40, 3))
    texts, told = Texts(workload), []
    for place, request in enumerate(workload.requests):
        prompt = texts.prompt(place, "" if request.after is None else told[request.after])
        told.append(prompt + answer_text(place, request.output_tokens))
    chains = [hash_chain(text.encode(), workload.block_tokens, 0) for text in told]
    ids = [request.blocks + request.output_blocks for request in workload.requests]
    assert any(request.after is not None for request in workload.requests)
    for one, other in combinations(range(len(told)), 2):
        assert common(chains[one], chains[other]) == common(ids[one], ids[other])


def test_a_history_of_the_wrong_length_is_refused() -> None:
    """Whatever followed would share other blocks than the workload says."""
    first = SimRequest(0.0, 20, 4, (1,))
    second = SimRequest(1.0, 30, 4, (1,), after=0)
    with pytest.raises(ValueError, match="request 1 follows on 3 bytes; 96 are expected"):
        Texts(Workload("w", BLOCK, (first, second))).prompt(1, "abc")
