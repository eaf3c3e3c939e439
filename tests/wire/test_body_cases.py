"""Request bodies that broke other proxies, through a real Envoy to engines of two models."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from yarl import URL

from tests.unit.core.cases import BodyCase, load
from tests.waiting import until
from tests.wire.raw_engine import RawEngine, running
from tests.wire.stack import MODEL, PROFILE, Stack, running_stack

pytestmark = pytest.mark.envoy
EMBED = "acme/embed-1"
MODELS = [MODEL, "acme/chat-8b", "acme/chat-8b-legal", "acme/whisper-s", "acme/paint-1"]
LIMIT = 4 * 1024 * 1024
CASES = [case for case in load() if PROFILE != "buffered" or len(case.data()) < LIMIT]
LABEL = re.compile(r'model="([^"]*)"')


class Fleet(NamedTuple):
    """A stack, and the engines of its two pools."""

    stack: Stack
    chat: RawEngine
    embed: RawEngine


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Run two pools, of which one is for requests without a model."""
    async with running(RawEngine(MODELS)) as chat, running(RawEngine([EMBED])) as embed:
        pool = f'  embed:\n    endpoints: ["{embed.address}"]\n    models: [{EMBED}]\ndefault_pool: main\n'
        async with running_stack(tmp_path, engines=0, addresses=[chat.address], pool=pool) as stack:
            yield Fleet(stack, chat, embed)
            assert await stack.violations() == {}


async def _send(stack: Stack, case: BodyCase, number: int) -> tuple[int, bytes]:
    headers = {"content-type": "application/json", **case.headers, "x-case": str(number), "x-tag": 'a; b="ü"'}
    data = None if case.method == "GET" else io.BytesIO(case.data())
    url, timeout = URL(stack.url + case.path, encoded=True), aiohttp.ClientTimeout(total=20)
    async with stack.client.request(case.method, url, data=data, headers=headers, timeout=timeout) as answer:
        return answer.status, await answer.read()


async def test_every_body_reaches_an_engine_of_its_model_as_it_is(fleet: Fleet) -> None:
    """Each goes to exactly one engine, byte for byte and with its headers, and leaves nothing behind."""
    answers = await asyncio.gather(*(_send(fleet.stack, case, number) for number, case in enumerate(CASES)))
    places = {int(got.header("x-case")): (engine, got) for engine in fleet[1:] for got in engine.received}
    assert len(fleet.chat.received) + len(fleet.embed.received) == len(CASES) == len(places)
    for number, case in enumerate(CASES):
        engine, got = places[number]
        assert answers[number][0] == 200, case.id
        assert (got.method, got.path, got.body) == (case.method, case.path, case.data()), case.id
        assert case.headers.items() <= dict(got.headers).items(), case.id
        assert got.header("x-tag").encode("latin-1").decode() == 'a; b="ü"'
        assert (engine is fleet.embed) == (case.model == EMBED), case.id
    await until(lambda: len(fleet.stack.logged("request_finished")) == len(CASES))
    await until(lambda: len(fleet.stack.service._core.ledger) == 0)
    await _expect_nothing_odd(fleet.stack)


async def _expect_nothing_odd(stack: Stack) -> None:
    """No fault was logged, no prompt shown, and no label made of what a client sent as its model (A12)."""
    assert stack.logged("exchange_failed") == []
    async with stack.client.get(f"http://{stack.service.admin_address}/metrics") as page:
        metrics = await page.text()
    assert set(LABEL.findall(metrics)) <= {*MODELS, EMBED, "", "none", "other", "unknown"}
    assert not any(word in stack.output.getvalue().decode() + metrics for word in ("three rivers", "tides", "wxyz"))


CLOTHES = {"model": MODEL, "messages": [{"role": "system", "content": "é" * 3000}, {"role": "user", "content": "one"}]}
PARTS = {"messages": [{"role": "system", "content": [{"type": "text", "text": "é" * 3000}]}, CLOTHES["messages"][1]]}
MARK = b"\xef\xbb\xbf"


WAYS = {
    "parts": ("/v1/chat/completions", json.dumps(CLOTHES | PARTS), {}),
    "order": ("/v1/chat/completions", json.dumps(dict(reversed(CLOTHES.items())), indent=3), {}),
    "mark": ("/v1/chat/completions", MARK + json.dumps(CLOTHES, ensure_ascii=False).encode(), {}),
    "utf-16": ("/v1/chat/completions", json.dumps(CLOTHES).encode("utf-16"), {}),
    "gzip": ("/v1/chat/completions", gzip.compress(json.dumps(CLOTHES).encode()), {"content_encoding": "gzip"}),
    "azure": ("/openai/deployments/x/chat/completions?api-version=1", json.dumps(CLOTHES), {}),
    "responses": (
        "/v1/responses",
        json.dumps({"model": MODEL, "instructions": "é" * 3000, "input": "one"}),
        {"content_type": "text/plain"},
    ),
    "messages": (
        "/v1/messages?beta=true",
        json.dumps({"model": MODEL, "system": "é" * 3000, "messages": CLOTHES["messages"][1:]}),
        {},
    ),
}


async def test_a_prompt_in_other_clothes_stays_with_its_engine(stack: Stack) -> None:
    """What an engine computed is found again however the same prompt is written (A04, A15, A27, A68)."""
    await stack.post("/v1/chat/completions", json.dumps(CLOTHES, ensure_ascii=False).encode())
    (first,) = await stack.finished(1)
    for count, (name, (path, body, headers)) in enumerate(WAYS.items(), 2):
        await stack.post(path, body.encode() if isinstance(body, str) else body, **headers)
        line = (await stack.finished(count))[-1]
        assert (line["endpoint"], line["hit_tokens"] > 300) == (first["endpoint"], True), name
