"""The client that sends a workload to live engines."""

from __future__ import annotations

import aiohttp
import pytest

from benchmarks import twin
from benchmarks.bodies import MODEL
from benchmarks.live_run import Client
from ext_proc.replay.workloads import RECIPES, Order, make
from ext_proc.sim.engine import SimEngine
from ext_proc.sim.options import EngineOptions
from ext_proc.sim.workload import Workload


@pytest.fixture
def chat() -> Workload:
    """A few conversations that take no time."""
    made = make(RECIPES["chat"], Order(20.0, 40, 4))
    return twin.paced(twin.shortened(made, 0.05), 10_000.0)


async def sent_to(model: str, workload: Workload) -> Client:
    """Send a workload to an engine without delays that serves a model."""
    options = EngineOptions(models=(model,), block_size=workload.block_tokens, kv_tokens=2_000_000)
    async with SimEngine(options) as engine, aiohttp.ClientSession(f"http://{engine.address}") as session:
        client = Client(session, workload)
        await client.run()
    return client


async def test_turns_find_their_history_in_the_engine(chat: Workload) -> None:
    """Every request is answered whole, and a turn's cached tokens are the blocks of the turn before and its answer."""
    client = await sent_to(MODEL, chat)
    assert sorted(client.answers) == list(range(len(chat.requests)))
    assert [answer.problem for answer in client.answers.values() if answer.problem] == []
    turns = 0
    for place, request in enumerate(chat.requests):
        answer = client.answers[place]
        assert answer.first_token is not None
        assert answer.prompt_tokens == request.prompt_tokens
        if request.after is not None:
            before = chat.requests[request.after]
            blocks = min(len(before.blocks + before.output_blocks), (request.prompt_tokens - 1) // chat.block_tokens)
            assert answer.cached_tokens == blocks * chat.block_tokens
            turns += 1
    assert turns


async def test_nothing_follows_on_a_failure(chat: Workload) -> None:
    """A refused request says why, and the rest of its conversation is not sent."""
    client = await sent_to("another", chat)
    openings = [place for place, request in enumerate(chat.requests) if request.after is None]
    assert sorted(client.answers) == openings
    assert all(answer.first_token is None and answer.problem.startswith("404") for answer in client.answers.values())
