"""Asking engines for tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from ext_proc.core.model import Endpoint
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sim.engine import EngineOptions, SimEngine
from ext_proc.sim.tokens import to_ids
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.engine_tokenizer import REST_S, EngineTokenizer, fetch_tokens
from ext_proc.sources.tokenizing import TokenizeError
from tests.unit.sources.serving import Answer, cut, flood, hang, page, redirecting, serving

PROMPT = TokenQuestion(b'"prompt":"once upon a time"')
CHAT = TokenQuestion(b'"messages":[{"role":"user","content":"hello"}]', chat=True)
VLLM = b'{"count":3,"max_model_len":100,"tokens":[1,2,3],"token_strs":null}'
SGLANG = b'{"tokens":[1,2,3],"count":3,"max_model_len":-1}'


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def test_an_engine_gives_the_tokens_that_it_uses(http: aiohttp.ClientSession) -> None:
    """A prompt and a conversation, as the simulated engine tokenizes them."""
    async with SimEngine(EngineOptions()) as engine:
        address = engine.url.removeprefix("http://")
        assert await fetch_tokens(http, address, PROMPT, None) == to_ids(b"once upon a time")
        text = b"<|user|>\nhello<|end|>\n<|assistant|>\n"
        assert await fetch_tokens(http, address, CHAT, engine.options.models[0]) == to_ids(text)


@pytest.mark.parametrize("body", [VLLM, SGLANG], ids=["vllm", "sglang"])
async def test_both_shapes_are_read(http: aiohttp.ClientSession, body: bytes) -> None:
    """The answers differ in order and in what else they hold."""
    async with serving() as engine:
        engine.answer = page(body)
        assert await fetch_tokens(http, engine.address, PROMPT, "m") == [1, 2, 3]


async def test_the_question_goes_out_with_the_model(http: aiohttp.ClientSession) -> None:
    """The engine gets the members as the client sent them, and the name that the client used."""
    heard: list[bytes] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        heard.append(await request.read())
        return web.Response(body=VLLM)

    async with serving() as engine:
        engine.answer = answer
        await fetch_tokens(http, engine.address, CHAT, 'a"b')
        assert engine.asked == ["/tokenize"]
    assert json.loads(heard[0]) == {"model": 'a"b', "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"", 400), "rejected"),
        (page(b"", 404), "http_404"),
        (page(b"", 500), "http_500"),
        (page(b"[1,2]"), "no_tokens"),
        (page(b'{"tokens":[[1],[2]]}'), "no_tokens"),
        (page(b'{"tokens":["a"]}'), "no_tokens"),
        (page(b"\xff"), "no_tokens"),
        (hang, "timeout"),
        (cut, "unreachable"),
        (flood, "too_large"),
        (redirecting("http://192.0.2.1/", b""), "no_tokens"),
    ],
    ids=["400", "404", "500", "list", "two prompts", "text", "bytes", "hangs", "cut", "endless", "empty"],
)
async def test_every_failure_has_a_reason(http: aiohttp.ClientSession, answer: Answer, reason: str) -> None:
    """Nothing but TokenizeError comes out, within a bound of time and size."""
    async with serving() as engine:
        engine.answer = answer
        timeout_s = 0.2 if reason == "timeout" else 15.0
        with pytest.raises(TokenizeError) as raised:
            await fetch_tokens(http, engine.address, PROMPT, "m", timeout_s=timeout_s)
    assert raised.value.reason == reason


async def test_prompts_follow_no_redirect(http: aiohttp.ClientSession) -> None:
    """A prompt is sent to the configured engine and nowhere else."""
    async with serving() as engine, serving() as other:
        engine.answer = page(b"", 307, Location=f"http://{other.address}/tokenize")
        with pytest.raises(TokenizeError, match="http_307"):
            await fetch_tokens(http, engine.address, PROMPT, "m")
        assert other.asked == []


async def test_engines_are_asked_in_turn_and_a_failed_one_rests(http: aiohttp.ClientSession) -> None:
    """The work is shared, and an engine without /tokenize costs one request in a while."""
    now = 100.0
    async with serving() as one, serving() as other:
        one.answer = other.answer = page(VLLM)
        engines = tuple(Endpoint(address=e.address, pool="p", slot=n) for n, e in enumerate((one, other)))
        tokenizer = EngineTokenizer(http, ApiKeys(), lambda: now)
        for _ in range(4):
            await tokenizer.tokens(PROMPT, "m", engines)
        assert (len(one.asked), len(other.asked)) == (2, 2)
        one.answer = page(b"", 404)
        results = [
            await asyncio.gather(tokenizer.tokens(PROMPT, "m", engines), return_exceptions=True) for _ in range(6)
        ]
        assert sum(isinstance(result[0], TokenizeError) for result in results) == 1
        assert len(one.asked) == 3
        now += REST_S + 1
        one.answer = page(VLLM)
        for _ in range(2):
            await tokenizer.tokens(PROMPT, "m", engines)
        assert len(one.asked) == 4


async def test_a_prompt_that_is_rejected_does_not_put_the_engine_to_rest(http: aiohttp.ClientSession) -> None:
    """A client's mistake is no reason to stop asking."""
    async with serving() as engine:
        endpoints = (Endpoint(address=engine.address, pool="p", slot=0),)
        tokenizer = EngineTokenizer(http, ApiKeys())
        engine.answer = page(b"", 400)
        with pytest.raises(TokenizeError, match="rejected"):
            await tokenizer.tokens(PROMPT, "m", endpoints)
        engine.answer = page(b"", 500)
        with pytest.raises(TokenizeError, match="http_500"):
            await tokenizer.tokens(PROMPT, "m", endpoints)
        with pytest.raises(TokenizeError, match="resting"):
            await tokenizer.tokens(PROMPT, "m", endpoints)
