"""Prompts that are the same to the letter and yet must not be taken for each other."""

from __future__ import annotations

import pytest

from benchmarks.engines.vllm_engine import BLOCK_TOKENS, MODEL
from tests.engines.stage import ADAPTER, Stage, chat

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "Rivers run to the sea, and the sea is never full. " * 30


async def expect(stage: Stage, data: bytes, tokens: int) -> None:
    """See that kvpicker expects so many cached tokens at the first engine, none at the other, and that it is so."""
    await stage.settled()
    assert await stage.explained(data) == {stage.taps[0].address: tokens, stage.taps[1].address: 0}
    assert (await stage.ask_engine(0, data)).cached_tokens == tokens


async def test_salts_do_not_cross(stage: Stage) -> None:
    """What was computed under a salt serves neither another salt nor none, and the same one fully."""
    salted = chat(TEXT, cache_salt="tenant-a")
    first = await stage.ask_engine(0, salted)
    whole = first.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    await expect(stage, chat(TEXT, cache_salt="tenant-b"), 0)
    await expect(stage, chat(TEXT), 0)
    await expect(stage, salted, whole)
    await expect(stage, chat(TEXT), whole)


async def test_adapters_do_not_cross(stage: Stage) -> None:
    """What was computed with a LoRA adapter does not serve its base model, nor the other way round."""
    adapted = chat(TEXT, model=ADAPTER)
    first = await stage.ask_engine(0, adapted)
    whole = first.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    await expect(stage, chat(TEXT, model=MODEL), 0)
    await expect(stage, adapted, whole)
    await expect(stage, chat(TEXT, model=MODEL), whole)


async def test_a_salt_is_not_an_adapter(stage: Stage) -> None:
    """A salt that reads like an adapter's name is none."""
    await stage.ask_engine(0, chat(TEXT, model=ADAPTER))
    await expect(stage, chat(TEXT, cache_salt=ADAPTER), 0)
    await expect(stage, chat(TEXT, model=ADAPTER, cache_salt=ADAPTER), 0)
