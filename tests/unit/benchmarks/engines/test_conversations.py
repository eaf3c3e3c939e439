"""Conversations are the same for everybody who holds them."""

from __future__ import annotations

import json

from aiohttp import ClientSession, web

from benchmarks.engines.conversations import Conversation, Plan, body, converse

PLAN = Plan(sessions=6, turns=3, at_once=2, think=0.0)


def test_a_seed_is_a_text() -> None:
    """The same seed and number give the same messages; others of them do not."""
    messages = [Conversation(PLAN, seed, number).messages(2) for seed in ("a", "b") for number in (0, 5)]
    assert messages[0] == Conversation(PLAN, "a", 0).messages(2)
    assert len({json.dumps(one) for one in messages}) == 4


def test_some_conversations_share_their_beginning() -> None:
    """Neighbours have a system prompt in common, and what follows is each one's own."""
    first, second, other = (Conversation(PLAN, "a", number).messages(0) for number in (0, 3, 4))
    assert first[0] == second[0] != other[0]
    assert first[1] != second[1]


def test_a_turn_begins_with_the_one_before() -> None:
    """What was said stays; answers that were really given take the place of made-up ones."""
    conversation = Conversation(PLAN, "a", 1)
    assert conversation.messages(2)[:2] == conversation.messages(0)
    told = conversation.messages(2, ["one", "two"])
    assert [message["content"] for message in told if message["role"] == "assistant"] == ["one", "two"]


async def test_all_turns_are_sent_and_a_failure_is_told() -> None:
    """Each turn of each conversation is one request, few at a time; what an engine refuses is a problem."""
    under_way = most = count = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most, count
        under_way += 1
        most, count = max(most, under_way), count + 1
        asked = await request.json()
        under_way -= 1
        if count == 1:
            return web.Response(status=503)
        usage = {"prompt_tokens": len(asked["messages"]), "prompt_tokens_details": {"cached_tokens": 1}}
        return web.json_response({"choices": [{"message": {"content": "yes"}}], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with ClientSession() as session:
        answers = await converse(session, f"http://{host}:{port}", "m", PLAN, "a")
    await runner.cleanup()
    assert len(answers) == count == PLAN.sessions * PLAN.turns
    assert most <= PLAN.at_once
    assert [one.problem[:3] for one in answers if one.problem] == ["503"]


def test_members_are_added_to_a_body() -> None:
    """What a request needs beside its messages is told."""
    assert json.loads(body("m", [], 3, cache_salt="s"))["cache_salt"] == "s"
