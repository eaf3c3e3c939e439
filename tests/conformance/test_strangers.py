"""Targets that are no endpoint pickers at all: a run comes to its end and says so."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from ext_proc.conformance.modes import Mode
from ext_proc.conformance.suite import Verdict, chosen, run_all
from ext_proc.conformance.target import Address, Target
from tests.conformance import replies
from tests.conformance.picker import SERVICE
from tests.conformance.trying import SETTINGS

HASTY = dataclasses.replace(SETTINGS, patience_s=0.3, limit_s=1.0)
MUCH = 5_000


def noise(generator: random.Random) -> bytes:
    """Return the beginning of an answer, or nothing that makes sense."""
    whole = bytes(replies.picked("request_headers", "10.0.0.21:8000"))
    return whole[: generator.randrange(len(whole) - 1)] if generator.random() < 0.5 else generator.randbytes(30)


def flood(_: random.Random) -> bytes:
    """Return the same empty answer each time."""
    return b""


PATTERNS = {
    noise: ["order.readable", "pick.*", "subset.odd", "health.*"],
    flood: ["health.liveness", "pick.both"],
}


@pytest.mark.parametrize("say", [noise, flood])
async def test_a_run_survives_what_it_is_told(say: Callable[[random.Random], bytes]) -> None:
    """Whatever comes, every check has a verdict with its evidence, and none breaks down."""
    generator = random.Random(7)

    async def process(_messages: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            for _ in range(MUCH if say is flood else 1):
                await context.write(say(generator))

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        where = Address(where=f"127.0.0.1:{port}")
        async with Target(where, where, HASTY.patience_s) as target:
            await target.reach()
            checks = chosen(PATTERNS[say], [Mode.DUPLEX])
            results = await run_all(target, HASTY, checks)
    finally:
        await server.stop(0)
    assert [result.check.id for result in results if "could not go on" in result.evidence] == []
    failed = {result.check.id for result in results if result.verdict is Verdict.FAILED}
    assert {"pick.both", "health.liveness"} <= failed
