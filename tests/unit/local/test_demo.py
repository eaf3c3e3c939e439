"""The demonstration: what is sent, in which order, and how it is explained."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from ext_proc.local.client import Reply
from ext_proc.local.demo import Demonstration, Part, Sent, cached_ratio, explain
from ext_proc.local.replay import replay
from ext_proc.local.scenario import Scenario, Sizes
from ext_proc.sim.engine import EngineOptions, SimEngine

SIZES = Sizes(document=4000, turn=200, turns=3, system=2000, questions=3, unrelated=400, singles=3)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def run(session: aiohttp.ClientSession) -> list[Sent]:
    """Hold the demonstration at a single engine."""
    async with SimEngine(EngineOptions()) as engine:
        return await Demonstration(session, engine.url, Scenario("sim-model", SIZES, 1)).run()


def reply(cached: int | None, prompt: int | None = 100, error: str = "") -> Reply:
    """Make a reply with its token counts."""
    return Reply(cached_tokens=cached, prompt_tokens=prompt, error=error)


async def test_every_part_is_sent(session: aiohttp.ClientSession) -> None:
    """Three parts of three requests, one part after the other, and none fails."""
    sent = await run(session)
    assert [one.part for one in sent] == [part for part in Part for _ in range(3)]
    assert [one.reply.error for one in sent] == [""] * 9


async def test_a_turn_repeats_what_was_said(session: aiohttp.ClientSession) -> None:
    """The last turn begins with all messages of the one before, then the engine's answer."""
    _, before, last, *_ = await run(session)
    assert last.body["messages"][:3] == before.body["messages"]
    assert last.body["messages"][3] == {"role": "assistant", "content": before.reply.text}


async def test_request_ids_are_unique(session: aiohttp.ClientSession) -> None:
    """Each explains one request, also of two demonstrations at one engine."""
    sent = [*await run(session), *await run(session)]
    assert len({one.request_id for one in sent}) == 18


async def test_the_replay_agrees_with_the_engine(session: aiohttp.ClientSession) -> None:
    """What really went to one engine gives the ratio that this engine reported."""
    sent = await run(session)
    again = replay([(one.body, one.reply.text) for one in sent], EngineOptions(), [0] * len(sent))
    assert again == pytest.approx(cached_ratio([one.reply for one in sent]) or 0)


async def test_explanations_are_waited_for(session: aiohttp.ClientSession) -> None:
    """Outcomes reach the admin server a moment after the answer reached the client."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.query["request_id"])
        found = [{"reason": "prefix"}] if len(asked) > 2 else []
        return web.Response(text=json.dumps({"decisions": found}), content_type="application/json", status=200)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sent = Sent(part=Part.SHARED, number=1, body={}, request_id="an-id", reply=reply(0))
        await explain(session, f"http://127.0.0.1:{runner.addresses[0][1]}", [sent])
    finally:
        await runner.cleanup()
    assert (sent.decision, asked) == ({"reason": "prefix"}, ["an-id"] * 3)


async def test_failed_requests_are_not_asked_about(session: aiohttp.ClientSession) -> None:
    """They may never have reached kvpicker."""
    sent = Sent(part=Part.SHARED, number=1, body={}, request_id="an-id", reply=reply(0, error="refused"))
    await explain(session, "http://127.0.0.1:1", [sent])
    assert sent.decision is None


def test_the_ratio_weighs_by_tokens() -> None:
    """Long prompts count for more."""
    assert cached_ratio([reply(90, 100), reply(0, 300)]) == 0.225


def test_failed_requests_do_not_count() -> None:
    """They used no tokens."""
    assert cached_ratio([reply(50), reply(None, None, error="refused")]) == 0.5


@pytest.mark.parametrize(
    "replies",
    [[], [reply(None)], [reply(5), reply(None)], [reply(5, None)]],
    ids=["none", "silent", "one silent", "no prompt"],
)
def test_what_is_not_reported_is_not_known(replies: list[Reply]) -> None:
    """A ratio over half of the requests would mislead."""
    assert cached_ratio(replies) is None
