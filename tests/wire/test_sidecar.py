"""The overlay `sidecar`, its own files run: Envoy and kvpicker over a Unix socket, engines known from a cluster."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.kube.following import Following
from tests.kube.server import FakeApi
from tests.unit.deploy.overlays import config_text, overlay
from tests.waiting import until
from tests.wire.stack import FAST, MODEL
from tests.wire.test_kubernetes import show

pytestmark = pytest.mark.envoy


async def test_the_files_of_the_overlay_work_together(tmp_path: Path) -> None:
    """Envoy's file is there once kvpicker is ready; requests go where it says, and it hears of their end."""
    api, output = FakeApi(), io.BytesIO()
    async with AsyncExitStack() as exits:
        # A path in a temporary folder of a test is too long for a socket.
        run = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="kvp-")))
        engines = [
            await exits.enter_async_context(SimEngine(EngineOptions(name=name, speed=FAST, models=(MODEL,))))
            for name in ("a", "b")
        ]
        for engine in engines:
            show(api, engine, ready=True)
        url = await exits.enter_async_context(api.serving())
        config = tmp_path / "kvpicker.yaml"
        text = config_text("sidecar", run).replace("0.0.0.0:9090", "127.0.0.1:0").replace(": inference,", ": default,")
        config.write_text(f"{text}\nkubernetes: {{kubeconfig: {Following(url, tmp_path).kubeconfig}}}\n")
        service = await exits.enter_async_context(Service(load(config), config, output))
        assert (run / "eds.json").exists()
        envoy_text = (overlay("sidecar") / "envoy.yaml").read_text("utf-8").replace("/run/kvpicker", str(run))
        for port in (8080, 9901):
            assert envoy_text.count(f"port_value: {port}\n") == 1
            envoy_text = envoy_text.replace(f"port_value: {port}\n", "port_value: 0\n")
        envoy = await exits.enter_async_context(EnvoyProcess(envoy_text, find_envoy(), concurrency=1))
        await until(lambda: service._core.registry.snapshot.models >= {MODEL})
        client = await exits.enter_async_context(aiohttp.ClientSession())
        address = f"http://127.0.0.1:{await envoy.port()}/v1/chat/completions"
        for number in range(6):
            ask = {
                "model": MODEL,
                "max_tokens": 2,
                "messages": [{"role": "user", "content": f"question {number} " * 99}],
            }
            async with client.post(address, json=ask) as answer:
                assert answer.status == 200
                await answer.read()

        def finished() -> list[dict[str, str]]:
            lines = [json.loads(line) for line in output.getvalue().splitlines()]
            return [line for line in lines if line["event"] == "request_finished"]

        await until(lambda: len(finished()) == 6)
        assert {line["endpoint"] for line in finished()} <= {engine.address for engine in engines}
        assert len(service._core.ledger) == 0
