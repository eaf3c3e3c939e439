"""Streams that wait for the tokens of a prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import msgspec
import pytest

from ext_proc.core.exchange_states import State
from ext_proc.core.names import EXT_PROC_SERVICE
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ext_proc_method
from tests.unit.wire.picking import CHAT, Picking, body_message, headers_message
from tests.unit.wire.serving import TRANSPORTS, Tally, begin, converse, serving
from tests.waiting import until

PROMPT = TokenPrompt(TokenHasher(16).chain(range(400)), 400)
PATH = f"/{EXT_PROC_SERVICE}/Process"
MESSAGES = (headers_message(), body_message())


class Source:
    """Has the tokens of any prompt when a test lets it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.bodies: list[bytes] = []
        self.at_once: Any = None

    def find(self, request: Any, head: Any, body: bytes) -> Any:
        """Note the body."""
        self.bodies.append(body)
        return self.at_once or self

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> TokenPrompt:
        await self.gate.wait()
        return PROMPT


def picking_with(source: Source) -> Picking:
    """Make a picker whose third engine reports the whole prompt."""
    picking = Picking()
    picking._policy = msgspec.structs.replace(picking._policy, tokens=source)
    resident, slot = picking.core.token_hits.resident, picking.core.registry.snapshot.endpoints[2].slot
    resident.add(slot, 16)
    resident.stored(slot, PROMPT.chain.hashes)
    return picking


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_answer_comes_when_the_tokens_do(transport: str) -> None:
    """The pick goes where the tokens say, in the one answer to the body."""
    source = Source()
    picking = picking_with(source)
    method = ext_proc_method(picking.exchange, Encoder(3), picking.notes)
    async with serving([method], transport) as channel:
        answers = asyncio.create_task(converse(channel, *MESSAGES, method=PATH))
        await until(lambda: bool(source.bodies))
        assert picking.notes.all("decided") == []
        source.gate.set()
        assert len(await answers) == 2
    (decision,) = picking.notes.all("decided")
    assert (decision.chosen.address, decision.hit_tokens, decision.exact[0]) == ("10.0.0.13:8000", 384, True)
    assert source.bodies == [CHAT]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_tokens_that_are_there_are_not_waited_for(transport: str) -> None:
    """A prompt that was seen before is picked for at once."""
    source = Source()
    source.at_once = PROMPT
    picking = picking_with(source)
    method = ext_proc_method(picking.exchange, Encoder(3), picking.notes)
    async with serving([method], transport) as channel:
        assert len(await converse(channel, *MESSAGES, method=PATH)) == 2
    assert picking.notes.all("decided")[0].exact[0] is True


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_leaves_while_its_prompt_is_tokenized_leaves_nothing(transport: str) -> None:
    """Nothing is decided or booked for it, and other streams go on."""
    source = Source()
    picking = picking_with(source)
    tally = Tally(inner=picking.session)
    async with serving([tally.method()], transport) as channel:
        call = begin(channel)
        for message in MESSAGES:
            await call.write(message)
        await until(lambda: bool(source.bodies))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call.read()
        await until(lambda: tally.running == 0)
        source.gate.set()
        assert len(await converse(channel, *MESSAGES)) == 2
    assert len(picking.notes.all("decided")) == 1


async def test_an_exchange_goes_on_once_and_only_if_it_waits() -> None:
    """An answer that nobody waits for any more changes nothing."""
    source = Source()
    picking = picking_with(source)
    exchange = picking.exchange()
    assert exchange.resume(PROMPT) is not None
    assert exchange.state is State.OPEN
    assert picking.notes.heard == []


async def test_a_fault_after_the_waiting_costs_the_pick_and_not_the_request() -> None:
    """As everywhere else, Envoy's own choice is left."""
    source = Source()
    source.gate.set()
    picking = picking_with(source)
    session = picking.session()
    session.receive(MESSAGES[0])
    waiting = session.receive(MESSAGES[1])
    picking.core.picker._index = None  # type: ignore[assignment]
    assert (await waiting).message  # type: ignore[misc]
    assert picking.notes.all("failed") == ["internal"]
