"""Envoy sends a request where the picker says, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from ext_proc.bootstrap.names import ENDPOINTS
from ext_proc.bootstrap.versions import lacks
from tests.envoys.builds import found_version
from tests.unit.bootstrap.lab import Gateway, Picker, pick, running, until

pytestmark = pytest.mark.envoy

DEAD = "127.0.0.1:1"
SERVED = "x-gateway-destination-endpoint-served"


async def assert_served(gateway: Gateway, address: str, attempts: int) -> None:
    """The access log has the endpoint of the last attempt, where the Envoy can tell it, and the number of attempts."""
    entry = await gateway.entry()
    common = entry.common_properties
    assert common is not None
    assert common.metadata is not None
    metadata = common.metadata.filter_metadata["envoy.lb"].to_dict()
    told = None if lacks(found_version(), "selected_host_key") else address
    assert (metadata.get(SERVED), common.upstream_request_attempt_count) == (told, attempts)


async def test_picked(trio: Gateway) -> None:
    """The endpoint that the picker names serves, whatever the load; the log names it."""
    chosen = trio.engines[1].address
    trio.picker.script = pick(chosen)
    assert [(await trio.post())[0] for _ in range(6)] == [200] * 6
    assert [len(engine.requests) for engine in trio.engines] == [0, 6, 0]
    await assert_served(trio, chosen, 1)


async def test_picked_by_the_address_of_a_name() -> None:
    """Engines that Envoy knows by name are named by their addresses, the IPv4 ones."""
    async with running(engines=2, host="localhost") as gateway:
        chosen = gateway.engines[1].address
        gateway.picker.script = pick(chosen)
        assert [(await gateway.post())[0] for _ in range(4)] == [200] * 4
        assert [len(engine.requests) for engine in gateway.engines] == [0, 4]
        await assert_served(gateway, chosen, 1)


async def test_retry_follows_the_list(trio: Gateway) -> None:
    """An endpoint that refuses the connection is followed by the next of the list."""
    await trio.engines[0].stop()
    trio.picker.script = pick(trio.engines[0].address, trio.engines[2].address)
    assert (await trio.post())[0] == 200
    await assert_served(trio, trio.engines[2].address, 2)


async def test_padded_list_stays_inside() -> None:
    """A list that repeats its only endpoint once per attempt never reaches the fallback policy."""
    async with running(engines=2) as gateway:
        refusing, other = gateway.engines
        await refusing.stop()
        gateway.picker.script = pick(*[refusing.address] * 3)
        assert (await gateway.post())[0] == 503
        await assert_served(gateway, refusing.address, 3)
        assert other.requests == []


async def test_exhausted_list_falls_back() -> None:
    """A list shorter than the attempts ends in the fallback policy."""
    async with running(engines=2, endpoints=(DEAD,)) as gateway:
        gateway.picker.script = pick(DEAD)
        assert (await gateway.post())[0] == 503
        await assert_served(gateway, DEAD, 3)


def assignment(healthy: list[str], unhealthy: list[str]) -> str:
    """An EDS file as kvpicker writes it."""
    entries = [
        {
            "endpoint": {"address": {"socket_address": {"address": ip, "port_value": int(port)}}},
            "health_status": status,
        }
        for status, addresses in (("HEALTHY", healthy), ("UNHEALTHY", unhealthy))
        for ip, port in (address.split(":") for address in addresses)
    ]
    resource = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": ENDPOINTS,
        "endpoints": [{"lb_endpoints": entries}],
    }
    return json.dumps({"resources": [resource]})


async def publish(gateway: Gateway, file: Path, text: str) -> None:
    """Replace the EDS file and wait until Envoy has read it."""
    counter = f"cluster.{ENDPOINTS}.update_success"
    before = (await gateway.envoy.stats(counter))[counter]
    draft = file.with_suffix(".tmp")
    draft.write_text(text)
    draft.rename(file)
    await until(lambda: gateway.envoy.stats(counter), lambda stats: stats[counter] > before)


@pytest.fixture
async def other_pool(tmp_path: Path) -> Any:
    """A gateway whose engines but the first are of another pool, unhealthy in EDS: enough of them for Envoy's panic."""
    file = tmp_path / "eds.json"
    file.write_text(assignment([], []))
    async with running(engines=4, endpoints_file=str(file)) as gateway:
        first, *others = (engine.address for engine in gateway.engines)
        await publish(gateway, file, assignment([first], others))
        yield gateway


async def test_other_pool_can_be_named(other_pool: Gateway) -> None:
    """An endpoint that is unhealthy in EDS serves when the picker names it."""
    other_pool.picker.script = pick(other_pool.engines[1].address)
    assert [(await other_pool.post())[0] for _ in range(5)] == [200] * 5
    assert len(other_pool.engines[1].requests) == 5


async def test_other_pool_is_no_fallback(other_pool: Gateway) -> None:
    """Without a picker no request reaches an endpoint that is unhealthy in EDS, even when all others fail."""
    await other_pool.picker.stop()
    assert [(await other_pool.post())[0] for _ in range(10)] == [200] * 10
    await other_pool.engines[0].stop()
    assert (await other_pool.post())[0] == 503
    assert [engine.requests for engine in other_pool.engines[1:]] == [[], [], []]


SPOOFED = {
    "x-gateway-destination-endpoint": DEAD,
    "x-gateway-destination-endpoint-subset": DEAD,
    "x-gateway-destination-endpoint-served": DEAD,
    "x-kvpicker-decision": "mine",
    "x-envoy-max-retries": "9",
    "x-envoy-retry-on": "5xx",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-original-path": "/admin",
}


async def test_spoofed_headers(trio: Gateway) -> None:
    """Headers that only Envoy and kvpicker may set reach neither the picker nor the engine."""
    assert (await trio.post(**SPOOFED))[0] == 200
    head = trio.picker.requests[0].request_headers
    assert head is not None
    assert head.headers is not None
    assert not SPOOFED.keys() & {header.key for header in head.headers.headers}
    await trio.picker.stop()
    assert (await trio.post(**SPOOFED))[0] == 200
    received = [
        request.headers.get(name) for engine in trio.engines for request, _ in engine.requests for name in SPOOFED
    ]
    assert [value for value in received if value] == [trio.engines[0].address]


SIZES = [0, 1, 65_536, 4_000_000, 12_000_000]


@pytest.mark.parametrize("size", SIZES)
async def test_body_is_untouched(size: int) -> None:
    """A body of any size arrives byte for byte with its length, picked by what the picker saw of it."""
    body = bytes(index * 7 % 256 for index in range(size % 65_537)) + b"x" * (size - size % 65_537)
    async with running(retries=None) as gateway:
        assert (await gateway.post(data=body))[0] == 200
        request, received = gateway.engine.requests[0]
        assert received == body
        if size == 0 or not lacks(found_version(), "allow_content_length_header"):
            assert request.headers["content-length"] == str(size)
        await assert_served(gateway, gateway.engine.address, 1)


async def test_large_answer_is_untouched(gateway: Gateway) -> None:
    """An answer larger than any buffer arrives whole, with the engine's own headers."""
    body = b"[" + b"1," * 5_000_000 + b"1]"

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers={"content-type": "application/json", "server": "engine"})

    gateway.engine.handler = answer
    _, headers, received = await gateway.post("/v1/embeddings")
    assert received == body
    assert headers["server"] == "engine"
    assert not [name for name in headers if name.startswith("x-")]


async def test_every_processor_sees_the_log() -> None:
    """With two kvpicker processes, each gets every access log entry, and one may be gone without an error."""
    second = Picker()
    await second.start()
    async with running(processors_and=(second.address,)) as gateway:
        second.script = gateway.picker.script
        assert [(await gateway.post())[0] for _ in range(4)] == [200] * 4
        await until(lambda: len(gateway.picker.entries) == len(second.entries) == 4)
        await second.stop()
        assert [(await gateway.post())[0] for _ in range(8)] == [200] * 8
    assert len(gateway.engine.requests) == 12


async def test_websocket(gateway: Gateway) -> None:
    """An upgraded connection is picked by its headers and passes both ways."""

    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data + "!")
        return socket

    gateway.engine.handler = echo
    gateway.picker.script = pick(gateway.engine.address, at_headers=True)
    async with gateway.session.ws_connect(gateway.url + "/v1/realtime") as socket:
        await socket.send_str("hello")
        message = await socket.receive(timeout=5)
        assert (message.type, message.data) == (WSMsgType.TEXT, "hello!")
