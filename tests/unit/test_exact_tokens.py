"""A whole kvpicker whose pool goes by tokens, with simulated engines as tokenizers."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.core.token_chain import TokenHasher
from ext_proc.sim.engine import EngineOptions, SimEngine
from ext_proc.sim.templates import render_chat
from ext_proc.sim.tokens import to_ids
from tests.unit.wire.picking import body_message, headers_message
from tests.waiting import until

BODY = {"model": "sim-model", "messages": [{"role": "user", "content": "List three rivers. " * 60}]}
CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
pools:
  main: {{endpoints: [{addresses}], tokens: {{deadline_ms: 1000}}}}
"""


class Site:
    """Three engines and a kvpicker; the third engine reports that it holds the prompt."""

    def __init__(self, service: Service, addresses: list[str]) -> None:
        self.service = service
        self.addresses = addresses
        core = service._core
        tokens = to_ids(render_chat(BODY))
        self.count, chain = len(tokens), TokenHasher(16).chain(tokens)
        for endpoint in core.registry.snapshot.endpoints:
            core.token_hits.resident.add(endpoint.slot, 16)
        slot = core.registry.snapshot.by_address[addresses[2]].slot
        core.token_hits.resident.stored(slot, chain.hashes)

    async def ask(self) -> None:
        """Have the request decided."""
        async with grpc.aio.insecure_channel(self.service.grpc_addresses[0]) as channel:
            call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
            await call.write(headers_message())
            await call.write(body_message(json.dumps(BODY).encode()))
            await call.done_writing()
            assert len([answer async for answer in call]) == 2

    async def page(self, path: str, body: bytes | None = None) -> Any:
        """Return a page of the admin server."""
        url = f"http://{self.service.admin_address}{path}"
        method = "GET" if body is None else "POST"
        async with aiohttp.ClientSession() as client, client.request(method, url, data=body) as answer:
            return await (answer.json() if "debug" in path else answer.text())


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run it all."""
    async with SimEngine(EngineOptions()) as a, SimEngine(EngineOptions()) as b, SimEngine(EngineOptions()) as c:
        addresses = [engine.address for engine in (a, b, c)]
        path = tmp_path / "kvpicker.yaml"
        path.write_text(CONFIG.format(addresses=", ".join(f"'{address}'" for address in addresses)))
        async with Service(load(path), path, io.BytesIO()) as service:
            await until(lambda: service._core.registry.snapshot.serves("sim-model"))
            yield Site(service, addresses)


async def test_a_request_goes_where_its_tokens_are_held(site: Site) -> None:
    """The engine's /tokenize gives the tokens, and the second time they are known."""
    await site.ask()
    (decision,) = (await site.page("/debug/decisions"))["decisions"]
    assert (decision["endpoint"], decision["predicted_by"]) == (site.addresses[2], "token")
    assert decision["prompt_tokens"] == site.count
    assert decision["predicted_cached_tokens"] == (site.count - 1) // 16 * 16
    await site.ask()
    counted = await site.page("/metrics")
    for result in ("asked", "cached"):
        assert f'kvpicker_token_lookups_total{{pool="main",result="{result}"}} 1.0' in counted


async def test_a_dry_run_knows_the_tokens_too(site: Site) -> None:
    """What is explained is what would be decided, and it is not counted."""
    told = await site.page("/debug/explain", json.dumps(BODY).encode())
    assert (told["endpoint"], told["predicted_by"]) == (site.addresses[2], "token")
    assert told["prompt_tokens"] == site.count
    assert "kvpicker_token_lookups_total{" not in await site.page("/metrics")
    assert (await site.page("/debug/explain?path=/unknown", b"x"))["verdict"] == "passed"
