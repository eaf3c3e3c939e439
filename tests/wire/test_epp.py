"""`kvpicker epp` in the place of a gateway's picker: its InferencePool, its ports, its TLS, its health."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.app import Service
from ext_proc.core.names import DESTINATION, EXT_PROC_SERVICE
from ext_proc.epp.command import add_arguments, configured
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.kube.following import Following
from tests.kube.objects import inference_pool, objective, pod
from tests.kube.server import FakeApi
from tests.waiting import until
from tests.wire.duplex.gateways import ai_gateway
from tests.wire.duplex.raw import Ask, ask, mirrors
from tests.wire.duplex.test_tls import BLIND, over_tls

pytestmark = pytest.mark.envoy

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
FREE = ("--address", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")


@asynccontextmanager
async def picking(tmp_path: Path, url: str) -> AsyncIterator[Service]:
    """Run the command with all its ports free, and a configuration that only says where the cluster is."""
    kubeconfig = Following(url, tmp_path).kubeconfig
    path = tmp_path / "kvpicker.yaml"
    path.write_text(f"kubernetes: {{kubeconfig: {kubeconfig}}}\ndrain_s: 0\nscrape: {{enabled: false}}\n")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([*FREE, "--pool-name", "vllm", "--config", str(path)])
    async with Service(*configured(arguments, "")[:2], io.BytesIO(), configured(arguments, "")[2]) as service:
        yield service


async def states(service: Service) -> dict[str, int]:
    """Ask for the names that gateways and probes ask for, as they do: in the clear."""
    async with grpc.aio.insecure_channel(service._grpc.health_addresses[0]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        names = ("liveness", "readiness", EXT_PROC_SERVICE, "inference-extension")
        return {name: (await check(health_pb2.HealthCheckRequest(service=name))).status for name in names}


async def test_a_gateway_finds_all_it_looks_for(tmp_path: Path) -> None:
    """An Envoy that trusts blindly gets picks from the InferencePool's pods; metrics are open, other pages local."""
    async with AsyncExitStack() as exits:
        engines = await exits.enter_async_context(mirrors())
        api = FakeApi()
        ports = [int(engine.address.rpartition(":")[2]) for engine in engines]
        api.put(inference_pool("vllm", ports=ports), pod("a", "127.0.0.1"), objective("urgent", 9))
        service = await exits.enter_async_context(picking(tmp_path, await exits.enter_async_context(api.serving())))
        assert set((await states(service)).values()) == {SERVING}
        addresses = [engine.address for engine in engines]
        text = json.dumps(over_tls(ai_gateway, BLIND)(service.grpc_addresses[0], addresses))
        envoy = EnvoyProcess(text.replace("@PIPE@", f"@{tmp_path.name}"), find_envoy(), concurrency=1)
        port = await (await exits.enter_async_context(envoy)).port("main")
        body = json.dumps({"messages": [{"role": "user", "content": "Name a river."}]}).encode()
        answer = await ask(port, Ask("1", body=body))
        assert answer is not None
        assert answer.status == 200
        await until(lambda: service._exchange_policy.priority("urgent") == 9)
        (engine,) = [engine for engine in engines if "1" in engine.got]
        assert engine.got["1"].headers[DESTINATION] == engine.address
        async with aiohttp.ClientSession(f"http://{service.admin_address}") as client:
            async with client.get("/metrics") as page:
                assert 'kvpicker_degraded{reason="certificates"} 0.0' in await page.text()
            async with client.get("/debug/endpoints") as page:
                assert len((await page.json())["endpoints"]) == 3


async def test_not_ready_before_the_cluster_has_told(tmp_path: Path) -> None:
    """Alive but not ready as long as the API server refuses, and ready when it has told, be it of no endpoint."""
    api = FakeApi()
    api.put(inference_pool("vllm"))
    api.refusals = [(503, {})] * 3  # the pool and both kinds of objectives ask at once
    async with api.serving() as url, picking(tmp_path, url) as service:
        assert await states(service) == {
            "liveness": SERVING,
            **dict.fromkeys(("readiness", EXT_PROC_SERVICE, "inference-extension"), NOT_SERVING),
        }
        async with aiohttp.ClientSession(f"http://{service.admin_address}") as client, client.get("/readyz") as page:
            assert (page.status, await page.text()) == (503, "not ready: the endpoints of no pool are known yet\n")
        await until(lambda: service._readiness.is_ready)
        assert set((await states(service)).values()) == {SERVING}
