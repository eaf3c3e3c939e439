"""What the doctor finds out of one engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ext_proc.core.model import Endpoint, MetricsSource
from ext_proc.core.sleepers import SleepLevel
from ext_proc.doctor.examination import _SAMPLE, Examination, examine
from ext_proc.doctor.pages import KvEvents, read_cache
from ext_proc.sim.engine import EngineOptions, SimEngine
from ext_proc.sources.kv_publishers import Publishers
from ext_proc.sources.local_tokenizer import LocalTokenizer
from tests.unit.sources.serving import Answer, hang, page, serving
from tests.unit.sources.tokenizer_files import write

SGLANG_METRICS = b"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:page_size 64\n"
VLLM_EVENTS = {
    "1": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5558", "replay_endpoint": None},
    "0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None},
}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(
    http: aiohttp.ClientSession, address: str, source: MetricsSource | None = None, **options: Any
) -> Examination:
    """Examine an engine."""
    endpoint = Endpoint(address=address, pool="p", slot=0)
    usual: dict[str, Any] = {"token": None, "probe": True, "timeout_s": 5.0}
    return await examine(http, endpoint, source or MetricsSource(), **(usual | options))


def paths(answers: Mapping[str, bytes]) -> Answer:
    """Answer at these paths, and 404 elsewhere."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = answers.get(request.path)
        return web.Response(status=404) if body is None else web.Response(body=body)

    return answer


async def test_an_engine_with_everything(http: aiohttp.ClientSession) -> None:
    """The simulated engine tells all but its KV events."""
    async with SimEngine(EngineOptions(models=("base",), block_size=32, kv_tokens=64_000)) as engine:
        made = await ask(http, engine.address)
    assert made == Examination(
        endpoint=engine.address,
        pool="p",
        reachable=True,
        engine="vllm",
        version="0.32.0",
        models=("base",),
        kv_tokens=64_000,
        block_tokens=32,
        prefix_caching=True,
        tokenizes_text=True,
        tokenizes_chat=True,
        asleep=False,
        reports_cached=True,
    )


async def test_each_feature_that_is_off_is_noticed(http: aiohttp.ClientSession) -> None:
    """What an engine lacks is told apart from what it has."""
    features = ("metrics", "models", "tokenize", "usage-details")
    async with SimEngine(EngineOptions(without=frozenset(features))) as engine:
        made = await ask(http, engine.address)
    assert (made.metrics_problem, made.models_problem) == ("http_404", "http_404")
    assert (made.tokenizes_text, made.tokenizes_chat, made.reports_cached) == (False, False, False)
    assert made.reachable


async def test_nothing_is_generated_unless_that_is_asked_for(http: aiohttp.ClientSession) -> None:
    """Without a probe the engine is only read."""
    async with SimEngine(EngineOptions()) as engine:
        made = await ask(http, engine.address, probe=False)
        async with http.get(f"{engine.url}/sim/requests") as response:
            asked = {record["path"] for record in await response.json()}
    assert made.reports_cached is None
    assert "/v1/completions" not in asked


async def test_events_of_vllm_are_read_rank_by_rank(http: aiohttp.ClientSession) -> None:
    """Newer versions list where each data-parallel rank publishes, in the order in which they became ready."""
    async with serving() as engine:
        engine.answer = paths({"/kv_event_sources": json.dumps(VLLM_EVENTS).encode(), "/v1/models": b"{}"})
        made = await ask(http, engine.address)
        assert (made.engine, made.kv_events) == ("vllm", KvEvents(True, "tcp://*:5557, tcp://*:5558", ranks=2))
        engine.answer = paths({"/kv_event_sources": b'{"0":{"enable_kv_cache_events":false}}'})
        assert (await ask(http, engine.address)).kv_events == KvEvents(False)


async def test_sglang_tells_all_in_one(http: aiohttp.ClientSession) -> None:
    """Events, block size and version come with its server info, also where its metrics are off."""
    events = {"publisher": "zmq", "endpoint_port_base": 5557, "block_size": 64, "replay_endpoint_port_base": 5657}
    events["dp_size"] = 4
    info: dict[str, Any] = {"version": "0.5.23", "kv_events": events, "disable_radix_cache": True}
    async with serving() as engine:
        engine.answer = paths({"/server_info": json.dumps(info).encode()})
        made = await ask(http, engine.address)
        assert (made.engine, made.version, made.block_tokens, made.prefix_caching) == ("sglang", "0.5.23", 64, False)
        assert made.kv_events == KvEvents(True, "port 5557", replay=True, block_tokens=64, ranks=4)
        engine.answer = paths({"/server_info": b'{"kv_events":null,"page_size":1}', "/metrics": SGLANG_METRICS})
        made = await ask(http, engine.address)
        assert (made.kv_events, made.block_tokens) == (KvEvents(False, block_tokens=1), 64)


async def test_nobody_at_home(http: aiohttp.ClientSession) -> None:
    """A closed port and a hanging one end within their bound, and nothing else is asked."""
    async with serving() as engine:
        address = engine.address
        engine.answer = hang
        made = await ask(http, address, timeout_s=0.1)
        assert (made.reachable, made.models_problem, engine.asked) == (False, "timeout", ["/v1/models"])
    assert (await ask(http, address)).models_problem == "unreachable"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"a":', b"null", b"[" * 100_000], ids=range(6))
async def test_nonsense_is_no_answer(http: aiohttp.ClientSession, body: bytes) -> None:
    """Whatever an engine says, there is a report."""
    async with serving() as engine:
        engine.answer = page(body)
        made = await ask(http, engine.address)
    assert (made.reachable, made.kv_events, made.probe_problem) == (True, None, "no answer with usage")


async def test_the_local_tokenizer_is_held_against_the_engines(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Files that the engine does not use as they are would make every exact lookup miss, without any error."""
    local = LocalTokenizer(write(tmp_path), 1_000)
    async with SimEngine(EngineOptions()) as other, serving() as same:
        ids = json.dumps({"tokens": list(local.tokenize(_SAMPLE))}).encode()
        same.answer = paths({"/tokenize": ids})
        made = [await ask(http, address, local=local) for address in (other.address, same.address)]
    assert [one.same_tokens for one in made] == [False, True]
    local.close()


async def test_the_ports_of_events_are_tried(http: aiohttp.ClientSession) -> None:
    """A port where nothing listens is told, whatever the engine says."""
    async with SimEngine(EngineOptions()) as engine, serving() as publisher:
        addresses = ((f"tcp://{publisher.address}", "tcp://127.0.0.1:9"),)
        made = await ask(http, engine.address, events=Publishers(addresses, b"", {}))
    assert made.deaf == ("tcp://127.0.0.1:9",)


async def test_an_engine_without_metrics_by_nature(http: aiohttp.ClientSession) -> None:
    """Ollama has none, and is not asked for any."""
    async with serving() as engine:
        engine.answer = paths({})
        made = await ask(http, engine.address, MetricsSource(engine="ollama"))
        assert (made.engine, made.metrics_problem) == ("ollama", "none")
        assert "/metrics" not in engine.asked


def test_a_page_of_a_real_vllm_is_read() -> None:
    """The labels of its cache config hold block size and prefix caching."""
    text = b'vllm:cache_config_info{block_size="128",enable_prefix_caching="False",engine="0"} 1.0\n'
    cache = read_cache(text)
    assert (cache.block_tokens, cache.prefix_caching) == (128, False)
    assert read_cache(b'vllm:cache_config_info{block_size="None"} 1.0\n').block_tokens is None
    assert read_cache(b"trtllm_kv_cache_tokens_per_block 32\n").block_tokens == 32
    assert read_cache(b"").prefix_caching is None


async def test_an_engine_that_wants_a_key_gets_it_with_every_question(http: aiohttp.ClientSession) -> None:
    """All but the page of metrics, whose token is another one."""
    async with serving() as engine:
        engine.answer = paths({"/v1/models": b'{"data":[{"id":"m"}]}', "/metrics": SGLANG_METRICS})
        await ask(http, engine.address, token="scraper", headers={"Authorization": "Bearer s3cret"})
        seen = dict(zip(engine.asked, engine.authorizations, strict=True))
    assert seen.pop("/metrics") == "Bearer scraper"
    assert set(seen) >= {"/v1/models", "/tokenize", "/version", "/server_info", "/v1/completions"}
    assert set(seen.values()) == {"Bearer s3cret"}


async def test_e17_an_engine_that_sleeps_is_not_given_a_prompt(http: aiohttp.ClientSession) -> None:
    """The probe would hang; whether it sleeps its metrics say, or its own answer."""
    for missing in (frozenset[str](), frozenset({"sleep-metric"})):
        async with SimEngine(EngineOptions(without=missing)) as engine:
            engine.slumber.sleep("2")
            made = await ask(http, engine.address)
            level = SleepLevel.UNKNOWN if missing else SleepLevel.DISCARD_ALL
            assert (made.asleep, made.sleep_level, made.reports_cached) == (True, level, None)
