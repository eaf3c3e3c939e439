"""Telling adapters from models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ext_proc.core.model import Endpoint
from ext_proc.sources.adapters import KEPT_S, Adapters
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.tokenizing import TokenizeError
from tests.unit.sources.serving import page, serving

LISTING = json.dumps(
    {"data": [{"id": "base"}, {"id": "nick", "root": "base"}, {"id": "legal", "parent": "base", "root": "/l"}]}
).encode()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def test_only_adapters_have_a_cache_of_their_own(http: aiohttp.ClientSession) -> None:
    """A further name of the base model shares its cache, and a request without a model uses it too."""
    async with serving() as engine:
        engine.answer = page(LISTING)
        endpoints = (Endpoint(address=engine.address, pool="p", slot=0),)
        adapters = Adapters(http, ApiKeys())
        names = [await adapters.name(model, endpoints) for model in ("base", "nick", "legal", None)]
        assert names == ["", "", "legal", ""]


async def test_an_engine_is_asked_once_a_minute(http: aiohttp.ClientSession) -> None:
    """The listing is not fetched for each request, and a name that is new at the engine is found after a while."""
    now = 0.0
    async with serving() as engine:
        engine.answer = page(LISTING)
        endpoints = (Endpoint(address=engine.address, pool="p", slot=0),)
        adapters = Adapters(http, ApiKeys(), lambda: now)
        for _ in range(3):
            await adapters.name("late", endpoints)
        assert len(engine.asked) == 1
        engine.answer = page(LISTING.replace(b"legal", b"late"))
        now = KEPT_S + 1
        assert await adapters.name("late", endpoints) == "late"


async def test_who_does_not_say_is_not_guessed(http: aiohttp.ClientSession) -> None:
    """Taking an adapter for its base model would predict hits that cannot be."""
    async with serving() as engine:
        engine.answer = page(b"", 500)
        with pytest.raises(TokenizeError, match="models"):
            await Adapters(http, ApiKeys()).name("base", (Endpoint(address=engine.address, pool="p", slot=0),))
