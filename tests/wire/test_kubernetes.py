"""Pods end and come while Envoy carries their streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ext_proc.sim.engine import SimEngine
from ext_proc.sources.kubernetes.endpoints import Found
from tests.kube.following import Following
from tests.kube.objects import endpoint, endpoint_slice
from tests.kube.server import FakeApi
from tests.waiting import until
from tests.wire.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.envoy

STREAMS = 12
REQUESTS = 60


def show(api: FakeApi, engine: SimEngine, **conditions: bool) -> None:
    """Let the cluster know an engine as a pod of the Service, in a slice of its own since its port is."""
    host, _, port = engine.address.rpartition(":")
    name = f"slice-{port}"
    api.put(endpoint_slice(name, "vllm", [endpoint(host, f"uid-{port}", **conditions)], {"http": int(port)}))


async def stream(stack: Stack, number: int, begun: list[str]) -> bool:
    """Ask for a long answer; tell whether it came to its end."""
    content = f"Tell me story number {number}. " * 5
    body = {"model": MODEL, "max_tokens": 200, "ignore_eos": True, "stream": True}
    body["messages"] = [{"role": "user", "content": content}]
    async with stack.client.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
        begun.append(answer.headers["x-sim-engine"])
        return (await answer.read()).rstrip().endswith(b"data: [DONE]")


async def test_a_terminating_pod_keeps_its_streams_and_gets_nothing_more(tmp_path: Path) -> None:
    """Of sixty requests none goes to a pod that ends although it is ready; its streams run to their end (E01)."""
    api = FakeApi()
    async with api.serving() as url:
        kubeconfig = Following(url, tmp_path).kubeconfig
        pool = f"    kubernetes: {{namespace: default, service: vllm}}\nkubernetes: {{kubeconfig: {kubeconfig}}}"
        async with running_stack(tmp_path, engines=2, speed=1.0, pool=pool) as stack:
            core = stack.service._core
            first, second = stack.engines
            for engine in stack.engines:
                show(api, engine, ready=True)
            await until(lambda: len(stack.service._watching._owners.get("main", Found()).owners) == 2)
            stack.list_engines([])  # from now on only the cluster knows them
            await until(lambda: core.registry.snapshot.endpoints and not stack.service._keeper._files["main"].specs)
            begun: list[str] = []
            streams = [asyncio.create_task(stream(stack, number, begun)) for number in range(STREAMS)]
            await until(lambda: len(begun) == STREAMS)
            assert set(begun) == {"engine-0", "engine-1"}
            show(api, first, ready=True, serving=True, terminating=True)
            await until(lambda: [each.address for each in core.registry.snapshot.endpoints] == [second.address])
            answers = await asyncio.gather(*(stack.chat(f"unique {number}") for number in range(REQUESTS)))
            assert {(status, headers["x-sim-engine"]) for status, headers, _ in answers} == {(200, "engine-1")}
            assert not any(task.done() for task in streams)
            assert await asyncio.gather(*streams) == [True] * STREAMS
            await stack.finished(STREAMS + REQUESTS)
            assert len(core.ledger) == 0
            assert await stack.violations() == {}
