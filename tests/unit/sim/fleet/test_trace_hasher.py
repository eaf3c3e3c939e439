"""Requests of a trace as the picker sees them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.model import Api, InferenceRequest, Operation
from ext_proc.sim.fleet.hasher import TraceHasher, packed


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_the_chain_is_the_ids_that_were_packed(ids: list[int]) -> None:
    """Any ids of 64 bits go through a request unchanged."""
    asked = InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, prompt=packed(ids))
    assert TraceHasher(16).chain(asked) == ids


def test_blocks_have_the_tokens_of_the_trace() -> None:
    """So many blocks have so many times the tokens of one."""
    assert [TraceHasher(512).tokens(blocks) for blocks in (0, 1, 3)] == [0, 512, 1536]
