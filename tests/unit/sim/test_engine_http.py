"""The simulated engine over plain HTTP."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from ext_proc.sim.engine import SimEngine
from tests.waiting import until

Chat = Callable[..., dict[str, Any]]
CHAT = "/v1/chat/completions"


async def post(http: aiohttp.ClientSession, engine: SimEngine, path: str, body: Any) -> tuple[int, Any]:
    """POST a JSON value; status and JSON value of the answer."""
    async with http.post(engine.url + path, json=body) as response:
        return response.status, await response.json()


async def test_the_answer_says_who_gave_it(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """Each answer names its engine in a header."""
    async with http.post(engine.url + CHAT, json=chat()) as response:
        assert response.headers["x-sim-engine"] == "one"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/tokenize", {"prompt": "abcdefgh"}, {"count": 2, "tokens": [1684234849, 1751606885]}),
        ("/detokenize", {"tokens": [1684234849]}, {"prompt": "abcd"}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}, {"input_tokens": 8}),
        ("/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}]}, {"model": "sim-model"}),
        ("/rerank", {"query": "q", "documents": ["a"], "top_n": 1}, {"model": "sim-model"}),
        ("/v1/score", {"text_1": "q", "text_2": ["a", "b"]}, {"object": "list"}),
        ("/score", {"queries": "q", "documents": "a"}, {"object": "list"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_small_paths(
    engine: SimEngine, http: aiohttp.ClientSession, path: str, body: Any, expected: dict[str, Any]
) -> None:
    """Paths without generated text answer in vLLM's shape."""
    status, answer = await post(http, engine, path, body)
    assert status == 200
    assert answer.items() >= expected.items()


async def test_sglang_generate(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    """SGLang's own path answers one document for a text and a list for a list."""
    sampling = {"max_new_tokens": 2}
    _, one = await post(http, engine, "/generate", {"text": "a", "sampling_params": sampling})
    _, many = await post(http, engine, "/generate", {"text": ["a"], "sampling_params": sampling})
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert [answer["text"] for answer in many] == [one["text"]]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/version", 200),
        ("GET", "/v1/models", 200),
        ("POST", "/reset_prefix_cache", 200),
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/nothing", 404),
        ("GET", "/sim/nothing", 404),
    ],
    ids=str,
)
async def test_paths_and_methods(
    engine: SimEngine, http: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    """Known paths answer, others are 404 or 405."""
    async with http.request(method, engine.url + path) as response:
        assert response.status == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"model": 3}', b"\xff\xfe"], ids=repr)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings", "/generate", "/tokenize"])
async def test_a_malformed_body_is_an_error_in_the_apis_shape(
    engine: SimEngine, http: aiohttp.ClientSession, path: str, body: bytes
) -> None:
    """The client's mistakes are answered with 400 or 404 and an error object."""
    async with http.post(engine.url + path, data=body) as response:
        assert response.status in {400, 404}
        answer = await response.json()
    assert answer["error"]["message"]
    assert (answer.get("type") == "error") == path.startswith("/v1/messages")


async def test_a_prompt_beyond_the_context_is_refused(
    start_engine: Any, http: aiohttp.ClientSession, chat: Chat
) -> None:
    """A prompt with its answer must fit into the model's context."""
    engine = await start_engine(max_model_len=100)
    status, answer = await post(http, engine, CHAT, chat("x" * 500))
    assert status == 400
    assert "maximum context length is 100 tokens" in answer["error"]["message"]


async def test_a_full_queue_answers_503(start_engine: Any, http: aiohttp.ClientSession, chat: Chat) -> None:
    """A bounded queue refuses what comes too much, with Retry-After where that is configured."""
    engine = await start_engine(speed=0.01, max_num_seqs=1, max_waiting=0, retry_after=3)
    url = engine.url + CHAT
    async with http.post(url, json=chat(stream=True)), http.post(url, json=chat()) as refused:
        assert (refused.status, refused.headers["retry-after"]) == (503, "3")


async def test_headers_of_a_stream_come_before_its_first_token(
    start_engine: Any, http: aiohttp.ClientSession, chat: Chat
) -> None:
    """As in vLLM, a stream's headers say nothing of the time to the first token."""
    engine = await start_engine(speed=0.01)
    async with asyncio.timeout(5), http.post(engine.url + CHAT, json=chat(stream=True)) as response:
        assert response.status == 200
        assert engine.scheduler.running
        assert not engine.scheduler.running[0].generated


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_frees_its_memory(
    start_engine: Any, http: aiohttp.ClientSession, chat: Chat, stream: bool
) -> None:
    """Disconnecting aborts the request in the engine."""
    engine = await start_engine(speed=0.01)
    request = asyncio.ensure_future(http.post(engine.url + CHAT, json=chat(stream=stream)))
    await until(lambda: engine.scheduler.cache.used > 0)
    if stream:
        (await request).close()
    else:
        request.cancel()
    await until(lambda: engine.scheduler.cache.used == 0)
    assert 'finished_reason="abort",model_name="sim-model"} 1.0' in engine.metrics.render().decode()


async def test_usage_can_be_in_every_event(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """The continuous usage of vLLM counts the tokens as they come."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream=True, max_tokens=3, stream_options=options)
    async with http.post(engine.url + CHAT, json=body) as response:
        lines = [line for line in (await response.text()).split("\n\n") if "usage" in line]
    counts = [json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"] for line in lines]
    assert counts == [0, 1, 2, 3, 3, 3]


async def test_models_and_salts_do_not_share_the_cache(
    start_engine: Any, http: aiohttp.ClientSession, chat: Chat
) -> None:
    """One prompt is cached for each model and salt by itself."""
    engine = await start_engine(models=("a", "b"))
    cached = []
    for fields in ({"model": "a"}, {"model": "b"}, {"model": "a", "cache_salt": "s"}, {"model": "a"}):
        _, answer = await post(http, engine, CHAT, chat("x" * 200, **fields))
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 0, 48]


async def test_one_conversation_hits_across_apis(engine: SimEngine, http: aiohttp.ClientSession, chat: Chat) -> None:
    """Anthropic's form of a conversation finds what OpenAI's form left in the cache."""
    await post(http, engine, CHAT, chat("x" * 200))
    _, answer = await post(http, engine, "/v1/messages", chat("x" * 200, max_tokens=1))
    assert answer["usage"]["cache_read_input_tokens"] == 48


async def test_received_bodies_can_be_proved(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    """The engine tells the digest of the raw body, found by request id, compressed or not."""
    raw = gzip.compress(b'{ "messages":[{"role":"user","content":"\xc3\xa9"}] }')
    headers = {"x-request-id": "r1", "content-encoding": "gzip"}
    async with http.post(engine.url + CHAT, data=raw, headers=headers) as response:
        assert (await response.json())["id"] == "chatcmpl-r1"
    async with http.get(engine.url + "/sim/requests?request_id=r1") as response:
        (record,) = await response.json()
    assert record["body_sha256"] == hashlib.sha256(raw).hexdigest()
    assert (record["body_length"], record["method"], record["path"]) == (len(raw), "POST", CHAT)
    assert ["content-encoding", "gzip"] in [[name.lower(), value] for name, value in record["headers"]]


async def test_state_and_metrics_show_the_load(start_engine: Any, http: aiohttp.ClientSession, chat: Chat) -> None:
    """What runs and waits is visible from outside."""
    engine = await start_engine(speed=0.01, max_num_seqs=1)
    async with (
        http.post(engine.url + CHAT, json=chat(stream=True)),
        http.post(engine.url + CHAT, json=chat(stream=True)),
    ):
        async with http.get(engine.url + "/sim/state") as response:
            state = await response.json()
        async with http.get(engine.url + "/metrics") as response:
            page = await response.text()
    assert (state["in_flight"], state["waiting"]) == (1, 1)
    assert 'vllm:num_requests_waiting{engine="0",model_name="sim-model"} 1.0' in page


@pytest.mark.parametrize("size", [1, 70_000, 4_000_000], ids=str)
async def test_prompts_of_all_sizes(start_engine: Any, http: aiohttp.ClientSession, chat: Chat, size: int) -> None:
    """Large bodies are read whole."""
    engine = await start_engine(kv_tokens=2_000_000, max_model_len=2_000_000)
    body = io.BytesIO(json.dumps(chat("x" * size, max_tokens=1)).encode())
    async with http.post(engine.url + CHAT, data=body) as response:
        assert response.status == 200
        answer = await response.json()
    assert answer["usage"]["prompt_tokens"] == pytest.approx(size / 4, abs=12)


async def test_an_engine_may_lack_features(start_engine: Any, http: aiohttp.ClientSession) -> None:
    """Versions and options of real engines differ in what they answer."""
    engine = await start_engine(without=frozenset({"metrics", "models", "tokenize", "usage-details"}))
    for path in ("/metrics", "/v1/models", "/tokenize"):
        async with http.get(engine.url + path) as response:
            assert response.status == 404, path
    async with http.post(engine.url + "/v1/completions", json={"prompt": "hello", "max_tokens": 1}) as response:
        assert (await response.json())["usage"]["prompt_tokens_details"] is None
