"""Bodies of every shape through the Envoys of gateways: each byte arrives once and in order, both ways."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from ext_proc.core.names import DESTINATION
from tests.wire.duplex.conftest import DuplexStack, Flavour, running
from tests.wire.duplex.gateways import ai_gateway, envoy_gateway, istio, kgateway
from tests.wire.duplex.raw import Ask, answer_body
from tests.wire.stack import MODEL

pytestmark = pytest.mark.envoy

REQUESTS = int(os.environ.get("KVPICKER_SHAPES", "60"))
AT_ONCE = 16
SIZES = (0, 1, 2, 300, 4_000, 32_000, 61_999, 62_000, 62_001, 70_000, 300_000)
LARGE = (1_100_000, 2_300_000, 5_000_000)
SHAPES = ("length", "chunked", "trailers", "events", "none")


def body_of(size: int, generator: random.Random) -> bytes:
    """Make a body: a chat of about so many bytes, or bytes that are nothing."""
    if size < 100 or generator.random() < 0.2:
        return generator.randbytes(size)
    fields = {"model": MODEL, "stream": generator.random() < 0.5}
    text = "".join(generator.choices("abcdefgh ", k=size - 90))
    return json.dumps({**fields, "messages": [{"role": "user", "content": text}]}).encode()


def request_of(number: int, generator: random.Random, largest: int) -> Ask:
    """Make a request of any shape."""
    size = generator.choice(LARGE if number % 40 == 7 else SIZES)
    size = min(size, largest)
    kind = generator.choice(SHAPES)
    amount = generator.choice((1, 5, 60)) if kind == "events" else generator.choice(SIZES if number % 40 else LARGE)
    body = None if generator.random() < 0.2 else body_of(size, generator)
    get = body is None and generator.random() < 0.7
    return Ask(
        case=str(number),
        method=generator.choice(("GET", "HEAD", "DELETE")) if get else "POST",
        path=generator.choice(("/v1/models", "/health")) if get else generator.choice(("/v1/chat/completions", "/any")),
        body=body,
        framing=generator.choice(("length", "chunked", "trailers")),
        cuts=[generator.randrange(len(body)) for _ in range(generator.randrange(5))] if body else (),
        shape=f"{kind} {0 if kind == 'none' else amount}",
        leave=number % 17 == 5,
    )


async def check(stack: DuplexStack, request: Ask, listener: str) -> None:
    """Send a request and hold what arrived against what was sent."""
    answer = await stack.ask(request, listener)
    if request.leave:
        return
    got = stack.got(request.case)
    assert got.whole, request
    assert got.body == (request.body or b""), (request.case, request.framing, len(got.body))
    trailers = ("x-checksum: 1",) if request.framing == "trailers" and request.body is not None else ()
    assert got.trailers == trailers
    assert answer is not None
    assert answer.whole, request
    kind, _, size = request.shape.partition(" ")
    assert answer.status == (204 if kind == "none" else 200), (answer, request)
    assert answer.body == (b"" if request.method == "HEAD" else answer_body(kind, int(size)))
    if request.method != "HEAD":
        assert answer.trailers == (("x-checksum: 7",) if kind == "trailers" else ())


@pytest.mark.parametrize("transport", ["queue", "aio"])
@pytest.mark.parametrize("flavour", [istio, ai_gateway, envoy_gateway, kgateway], ids=lambda flavour: flavour.__name__)
async def test_every_shape_arrives_as_it_was_sent(tmp_path: Path, flavour: Flavour, transport: str) -> None:
    """Requests and answers of mixed shapes over both HTTP versions, and clients that leave in the middle."""
    single = "envoy: {data_plane: subset}" if flavour is kgateway else ""
    largest = {envoy_gateway: 300_000, kgateway: 1_000_000}.get(flavour, 5_000_000)
    generator = random.Random(f"{flavour.__name__} {transport}")
    requests = [request_of(number, generator, largest) for number in range(REQUESTS)]
    duplex = flavour in {istio, ai_gateway}
    async with running(tmp_path, flavour, transport=transport, extra=single, settles=duplex) as stack:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(request: Ask) -> None:
            async with turns, asyncio.timeout(60):
                await check(stack, request, "front" if int(request.case) % 3 == 0 else "main")

        await asyncio.gather(*map(one, requests))
        destinations = [
            got.headers[DESTINATION]
            for engine in stack.engines
            for got in engine.got.values()
            if DESTINATION in got.headers
        ]
        assert flavour is envoy_gateway or all("," not in value for value in destinations)
        assert len({engine.name for engine in stack.engines if engine.got}) == 3
