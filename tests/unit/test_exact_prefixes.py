"""A whole kvpicker that knows prompts by their tokens and caches by the engines' own events."""

from __future__ import annotations

import io
import json
from pathlib import Path

import aiohttp
import grpc.aio

from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.unit.wire.picking import body_message, headers_message
from tests.waiting import until

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
pools:
  main:
    endpoints: [{endpoints}]
    kv_events: {{port: 5557}}
    tokens: {{deadline_ms: 1000}}
"""
SYSTEM = "You answer in few words and never about rivers. " * 8


class Site:
    """Two engines and a kvpicker without an Envoy: the test carries requests where they are to go."""

    def __init__(self, service: Service, engines: list[SimEngine], session: aiohttp.ClientSession) -> None:
        self.service = service
        self.engines = {engine.address: engine for engine in engines}
        self.session = session

    async def chat(self, messages: list[dict[str, str]]) -> tuple[int, int, str, str]:
        """Send a turn; returns predicted and true cached tokens, by what was predicted, and the answer."""
        body = {"model": "sim-model", "messages": messages, "max_tokens": 40, "ignore_eos": True}
        async with grpc.aio.insecure_channel(self.service.grpc_addresses[0]) as channel:
            call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
            await call.write(headers_message())
            await call.write(body_message(json.dumps(body).encode()))
            await call.done_writing()
            assert len([answer async for answer in call]) == 2
        pages = f"http://{self.service.admin_address}/debug/decisions?limit=1"
        async with self.session.get(pages) as page:
            (decision,) = (await page.json())["decisions"]
        address = decision["endpoint"]
        async with self.session.post(f"http://{address}/v1/chat/completions", json=body) as answered:
            answer = await answered.json()
        await self.told(address)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        text = answer["choices"][0]["message"]["content"]
        return decision["predicted_cached_tokens"], cached, decision["predicted_by"], text

    async def told(self, address: str) -> None:
        """Wait until the index holds what an engine holds."""
        core, cache = self.service._core, self.engines[address].scheduler.cache
        slot = core.registry.snapshot.by_address[address].slot
        await until(lambda: core.resident.blocks(slot) == cache.cached and slot in core.resident)


def _endpoint(engine: SimEngine) -> str:
    assert engine.kv_ports is not None
    events, replay = engine.kv_ports
    return f"{{address: '{engine.address}', kv_events_port: {events}, kv_replay_port: {replay}}}"


async def test_what_is_predicted_of_conversations_is_what_engines_had(tmp_path: Path) -> None:
    """Turn after turn, answers that came back included, the cached tokens are predicted to the token."""
    options = EngineOptions(kv_events=0)
    async with SimEngine(options) as a, SimEngine(options) as b, aiohttp.ClientSession() as session:
        path = tmp_path / "kvpicker.yaml"
        path.write_text(CONFIG.format(endpoints=", ".join(map(_endpoint, (a, b)))))
        async with Service(load(path), path, io.BytesIO()) as service:
            site = Site(service, [a, b], session)
            await until(lambda: service._core.registry.snapshot.serves("sim-model"))
            for engine in (a, b):
                # Nothing was published yet, and that is enough to know.
                await site.told(engine.address)
            conversations: list[list[dict[str, str]]] = [
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Conversation {number}. " * 9}]
                for number in range(4)
            ]
            predictions: list[tuple[int, int, str]] = []
            for _ in range(4):
                for messages in conversations:
                    predicted, cached, mode, text = await site.chat(messages)
                    predictions.append((predicted, cached, mode))
                    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on. " * 7}]
            assert [predicted for predicted, _, _ in predictions] == [cached for _, cached, _ in predictions]
            assert {mode for _, _, mode in predictions} == {"token"}
            assert sum(cached > 0 for _, cached, _ in predictions) >= 12
