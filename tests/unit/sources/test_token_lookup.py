"""Finding tokens in time, once, and within bounds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.core.resident_index import ResidentIndex
from ext_proc.core.token_chain import TokenHasher
from ext_proc.core.token_hits import TokenPrompt
from ext_proc.sources.adapters import Adapters
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.token_lookup import (
    MOST_AT_ONCE,
    NONE_KEPT_S,
    SIZE_KEPT_S,
    USUAL_SIZE,
    BlockSizes,
    PoolTokens,
    TokenLookup,
)
from ext_proc.sources.tokenizing import TokenizeError
from tests.unit.sources.serving import page, serving
from tests.waiting import until

LISTING = b'{"data":[{"id":"m"},{"id":"lora","parent":"m"}]}'
HEAD = RequestHead(path="/v1/completions")


class Gate:
    """A tokenizer that waits until it is let go; the tokens are the bytes of the question."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[TokenQuestion] = []
        self.failure: Exception | None = None
        self.closed = False

    async def tokens(self, question: TokenQuestion, model: str | None, endpoints: Sequence[Endpoint]) -> Sequence[int]:
        """Wait, and answer or fail."""
        self.asked.append(question)
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return list(question.members)

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Bench:
    """A lookup for pool `p` whose engines at the addresses report blocks of 4 tokens."""

    def __init__(self, http: aiohttp.ClientSession, address: str, deadline_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.registry, self.resident, self.gate = Registry(), ResidentIndex(), Gate()
        self.registry.replace("p", [EndpointSpec(address=address)], frozenset({"m", "lora"}))
        self.slot = self.registry.snapshot.endpoints[0].slot
        self.resident.add(self.slot, 4)
        adapters = Adapters(http, ApiKeys())
        self.lookup = TokenLookup(self.registry, self.resident, adapters, self.count, 1 << 20, told)
        self.lookup.configure({"p": PoolTokens(self.gate, deadline_s, 10_000)})

    def count(self, pool: str, result: str) -> None:
        """Note it."""
        assert pool == "p"
        self.counts[result] += 1

    def find(self, prompt: Any = "abcdefgh", **members: Any) -> Any:
        """Look for a completion's tokens."""
        body = json.dumps({"model": "m", "prompt": prompt, **members}).encode()
        route = classify("POST", HEAD.path)
        assert route is not None
        return self.lookup.find(parse(route, HEAD, body, complete=True), HEAD, body)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A lookup with all the time it needs."""
    async with make() as made:
        yield made


class make:  # noqa: N801  reads as the verb that it is
    """Make a bench, and the engine behind it."""

    def __init__(self, deadline_s: float = 20.0) -> None:
        self._deadline_s = deadline_s

    async def __aenter__(self) -> Bench:
        self._serving = serving()
        engine = await self._serving.__aenter__()
        engine.answer = page(LISTING)
        self._http = aiohttp.ClientSession()
        self._bench = Bench(self._http, engine.address, self._deadline_s)
        return self._bench

    async def __aexit__(self, *_: object) -> None:
        self._bench.lookup.close()
        await self._http.close()
        await self._serving.__aexit__(None, None, None)


def chain_of(members: bytes, adapter: str = "", salt: str = "") -> TokenPrompt:
    """Make what the gate's tokens come to."""
    return TokenPrompt(TokenHasher(4).chain(list(members), adapter, salt), len(members))


async def test_tokens_are_found_and_remembered(bench: Bench) -> None:
    """The second request with the same text is answered at once."""
    bench.gate.open.set()
    assert await bench.find() == chain_of(b'"prompt":"abcdefgh"')
    assert bench.find() == chain_of(b'"prompt":"abcdefgh"')
    assert bench.counts == {"asked": 1, "cached": 1}
    assert len(bench.gate.asked) == 1


async def test_salt_and_adapter_do_not_cross(bench: Bench) -> None:
    """Equal texts of two tenants or two adapters are different prompts to the cache."""
    bench.gate.open.set()
    asked: tuple[dict[str, Any], ...] = ({}, {"cache_salt": "t1"}, {"model": "lora"})
    plain, salted, other = [await bench.find(**members) for members in asked]
    text = b'"prompt":"abcdefgh"'
    assert (plain, salted, other) == (chain_of(text), chain_of(text, salt="t1"), chain_of(text, "lora"))
    assert len({found.chain.hashes[0] for found in (plain, salted, other)}) == 3


async def test_a_prompt_of_tokens_needs_no_tokenizer(bench: Bench) -> None:
    """The ids that the client sent are those that the engine hashes."""
    found = await bench.find([1, 2, 3, 4, 5])
    assert found == TokenPrompt(TokenHasher(4).chain([1, 2, 3, 4, 5]), 5)
    assert bench.gate.asked == []
    assert bench.find([1, 2, 3, 4, 5]) == found


async def test_after_the_deadline_the_text_decides_and_the_tokens_serve_the_next() -> None:
    """A late answer costs the deadline and no more, is counted, and is kept."""
    async with make(deadline_s=0.02) as bench:
        assert await bench.find() is None
        assert bench.counts == {"late": 1}
        bench.gate.open.set()
        await until(lambda: isinstance(bench.find(), TokenPrompt))


async def test_equal_questions_are_asked_once(bench: Bench) -> None:
    """A burst of one prompt makes one request to the tokenizer."""
    waiting = [bench.find() for _ in range(5)]
    bench.gate.open.set()
    found = [await one for one in waiting]
    assert len(bench.gate.asked) == 1
    assert all(one == found[0] is not None for one in found)


async def test_one_who_leaves_does_not_take_the_tokens_from_the_others(bench: Bench) -> None:
    """A client that hangs up cancels its own waiting only."""

    async def wait() -> TokenPrompt | None:
        found: TokenPrompt | None = await bench.find()
        return found

    first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
    await until(lambda: bool(bench.gate.asked))
    first.cancel()
    bench.gate.open.set()
    assert await second is not None
    assert bench.counts == {"asked": 1}


async def test_too_much_at_once_is_decided_by_text(bench: Bench) -> None:
    """A slow tokenizer does not pile up work without bound."""
    waiting = [bench.find(f"prompt {number}") for number in range(MOST_AT_ONCE)]
    assert bench.find("one more") is None
    assert bench.counts == {"busy": 1}
    bench.gate.open.set()
    assert all([await one for one in waiting])


@pytest.mark.parametrize(
    ("failure", "result"),
    [(TokenizeError("http_500"), "failed_http_500"), (RuntimeError("x"), "failed_internal")],
    ids=["known", "surprise"],
)
async def test_a_failure_is_counted_and_leaves_the_text(bench: Bench, failure: Exception, result: str) -> None:
    """Whatever a tokenizer does, the request is decided; nothing is remembered of it."""
    bench.gate.failure = failure
    bench.gate.open.set()
    assert await bench.find() is None
    assert bench.counts == {result: 1}
    bench.gate.failure = None
    assert await bench.find() is not None


async def test_ids_that_are_none_are_no_tokens(bench: Bench) -> None:
    """A client may send any number."""
    assert await bench.find([-1, 2]) is None
    assert bench.counts == {"failed_no_tokens": 1}


async def test_how_full_its_structures_are(bench: Bench) -> None:
    """A prompt that is being tokenized takes a place, and one that is known takes memory."""
    assert bench.lookup.fills == {"token_cache": 0.0, "tokenizing": 0.0}
    later = bench.find()
    assert bench.lookup.fills["tokenizing"] == 1 / MOST_AT_ONCE
    bench.gate.open.set()
    await later
    assert 0.0 < bench.lookup.fills["token_cache"] < 0.01
    await until(lambda: bench.lookup.fills["tokenizing"] == 0.0)


async def test_without_reports_nobody_is_asked(bench: Bench) -> None:
    """Tokens are of no use while no engine says what it holds."""
    bench.resident.remove(bench.slot)
    assert bench.find() is None
    assert bench.counts == {"no_reports": 1}


def told(slot: int) -> int | None:
    """Say of one engine how large its blocks are."""
    return 8 if slot == 3 else None


def test_blocks_are_cut_as_most_engines_do_it() -> None:
    """A change is noticed within a second, a first report and a change of the endpoints at once."""
    now, resident, sizes = 0.0, ResidentIndex(), BlockSizes(lambda: now)
    endpoints = tuple(Endpoint(address=f"10.0.0.{slot}:1", pool="p", slot=slot) for slot in range(3))
    for slot, size in enumerate((32, 16, 16)):
        resident.add(slot, size)
    assert sizes.of("m", endpoints, resident, told) == 16
    resident.remove(1)
    resident.remove(2)
    assert sizes.of("m", endpoints, resident, told) == 16
    assert sizes.of("m", endpoints[:2], resident, told) == 32
    now = SIZE_KEPT_S
    resident.remove(0)
    assert sizes.of("m", endpoints, resident, told) is None
    resident.add(0, 64)
    now += NONE_KEPT_S
    assert sizes.of("m", endpoints, resident, told) == 64


def test_blocks_of_engines_that_hold_nothing_are_as_they_say_or_as_usual() -> None:
    """An engine that is known to be empty is no reason to go by text; its first report counts at once."""
    resident, sizes = ResidentIndex(), BlockSizes(lambda: 0.0)
    plain, saying = (Endpoint(address=f"10.0.0.{slot}:1", pool="p", slot=slot) for slot in (1, 3))
    resident.add(1)
    resident.add(3)
    assert sizes.of("m", (plain,), resident, told) == USUAL_SIZE
    both = (saying,)
    assert sizes.of("m", both, resident, told) == 8
    resident.remove(3)
    resident.add(3, 32)
    assert sizes.of("m", both, resident, told) == 32


async def test_what_cannot_be_asked_is_counted_by_its_reason(bench: Bench) -> None:
    """An operator sees why requests go by text."""
    assert bench.find(["a", "b"]) is None
    assert bench.counts == {"unsupported": 1}


async def test_pools_that_go_by_text_cost_nothing(bench: Bench) -> None:
    """A pool without the mode is not even counted, nor is a model that nobody serves."""
    bench.registry.replace("q", [EndpointSpec(address="10.0.0.9:1")], frozenset({"other"}))
    assert bench.find(model="other") is None
    assert bench.find(model="nobody") is None
    assert not bench.counts


async def test_a_new_configuration_drops_what_is_under_way(bench: Bench) -> None:
    """Who waits then goes by text, and the old tokenizer is closed."""
    waiting = asyncio.ensure_future(bench.find())
    await until(lambda: bool(bench.gate.asked))
    bench.lookup.configure({})
    assert await waiting is None
    assert bench.counts == {"dropped": 1}
    assert bench.gate.closed
    assert bench.find() is None
