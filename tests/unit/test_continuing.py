"""A request that continues a response waits for word of who made it, and for no more than that."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable

import pytest

from ext_proc.continuing import Continuing
from ext_proc.core.affinity import Affinity
from ext_proc.core.model import InferenceRequest
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prompts import RequestHead
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import Found, TokenPrompt
from tests.unit.core.builders import CHAT, request
from tests.waiting import until

HEAD = RequestHead(path="/v1/responses", content_type="application/json")


class Tokens:
    """Has what it was given."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def find(self, request: InferenceRequest, head: RequestHead, body: bytes) -> Found:
        """Give it."""
        return self.found


class Made:
    """A wait, and what it asks."""

    def __init__(self, found: Found = None, endpoints: int = 2, timeout_s: float = 2.0) -> None:
        self.responses, self.silent = Affinity(), False
        registry = self.registry = Registry()
        specs = [EndpointSpec(address=f"10.0.0.{number}:8000") for number in range(1, endpoints + 1)]
        registry.replace("p", specs)
        tokens = None if found is None else Tokens(found)
        self.waits = Continuing(tokens, self.responses, registry, lambda: self.silent, timeout_s)

    def find(self, previous: str | None = "r") -> Found:
        """Ask for a request."""
        return self.waits.find(request(previous_response=previous), HEAD, b"")


async def test_it_waits_until_the_maker_is_known() -> None:
    """Not longer."""
    made = Made()
    found = made.find()
    assert isinstance(found, Awaitable)
    waiting = asyncio.ensure_future(found)
    await until(lambda: made.waits._waiting == 1)
    assert not waiting.done()
    made.responses.tie("r", "10.0.0.1:8000", time.monotonic())
    assert await waiting is None
    assert made.waits._waiting == 0


async def test_a_response_that_nobody_made_is_waited_for_a_quarter_of_envoys_time() -> None:
    """Envoy must not give up for it."""
    began, found = time.monotonic(), Made(timeout_s=0.2).find()
    assert isinstance(found, Awaitable)
    assert await found is None
    assert time.monotonic() - began >= 0.05


async def test_where_makers_are_never_told_hardly_anybody_waits() -> None:
    """One in sixteen still tries, and if that gets word all wait again."""
    made = Made(timeout_s=0.02)
    for _ in range(8):
        found = made.find()
        assert isinstance(found, Awaitable)
        await found
    tried = [found for _ in range(32) if isinstance(found := made.find(), Awaitable)]
    assert len(tried) == 2
    made.responses.tie("r", "10.0.0.1:8000", time.monotonic())
    for found in tried:
        await found
    again = made.find("another")
    assert isinstance(again, Awaitable)
    await again


async def test_tokens_that_were_found_are_kept() -> None:
    """Whether they are there already or to be awaited."""
    tokens = TokenPrompt(TokenHasher(4).chain([1, 2, 3, 4]), 4)
    made = Made(tokens, timeout_s=0.05)
    found = made.find()
    assert isinstance(found, Awaitable)
    assert await found is tokens

    async def later() -> TokenPrompt | None:
        return tokens

    found = Made(later(), timeout_s=0.05).find()
    assert isinstance(found, Awaitable)
    assert await found is tokens


@pytest.mark.parametrize("why", ["known", "none continued", "one endpoint", "one of the model", "silent", "many wait"])
def test_nothing_else_waits(why: str) -> None:
    """What is known, what continues nothing, and what waiting would not help goes on at once."""
    made = Made(endpoints=1 if why == "one endpoint" else 2)
    if why == "known":
        made.responses.tie("r", "10.0.0.1:8000", time.monotonic())
    if why == "one of the model":
        made.registry.replace("q", [EndpointSpec(address="10.0.0.9:8000")], CHAT)
    made.silent = why == "silent"
    made.waits._waiting = 1_000 if why == "many wait" else 0
    found = made.find(None if why == "none continued" else "r")
    if inspect.iscoroutine(found):
        found.close()
    assert found is None
