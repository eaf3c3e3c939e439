"""An engine that begins anew holds nothing, whatever it said before."""

from __future__ import annotations

import pytest

from benchmarks.engines.vllm_engine import BLOCK_TOKENS
from tests.engines.stage import DEADLINE_S, Stage, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_first_event_after_a_restart_empties_an_engines_part(stage: Stage) -> None:
    """With one event of the new process all that the old one told is gone; what the other engine told stays."""
    old = [chat(f"{number} gamma delta " * 200) for number in range(3)]
    for prompt in old:
        await stage.ask_engine(0, prompt)
        await stage.ask_engine(1, prompt)
    await stage.settled()
    before = [stage.blocks(number) for number in range(2)]
    assert before[0] > 50
    await stage.engines[0].stop()
    await stage.engines[0].start()
    await stage.engines[0].ready()
    fresh = chat("one event is enough " * 20)
    told = await stage.ask_engine(0, fresh)
    assert told.cached_tokens == 0
    await until(lambda: stage.blocks(0) != before[0], DEADLINE_S)
    assert stage.blocks(0) == told.prompt_tokens // BLOCK_TOKENS
    assert stage.blocks(1) == before[1]
    await stage.settled()
    for prompt in old:
        expected = await stage.explained(prompt)
        assert expected[stage.taps[0].address] == 0
        assert expected[stage.taps[1].address] > 0
    assert (await stage.explained(fresh))[stage.taps[0].address] == told.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert 'kvpicker_kv_event_recoveries_total{result="restart"} 1.0' in await stage.page("/metrics")
