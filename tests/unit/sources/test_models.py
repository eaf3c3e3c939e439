"""Learning what engines serve, from real HTTP servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prompts import RequestHead, classify, parse
from ext_proc.sources.models import (
    MAX_BYTES,
    TIMEOUT_S,
    Listing,
    ListingError,
    ModelLearner,
    fetch_listing,
    read_listing,
)
from tests.unit.sources.serving import Engine, drip, drop, hang, page
from tests.unit.sources.serving import serving as serving_any
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ext_proc.core.model import Endpoint
    from ext_proc.core.pool import Change

CHAT, LEGAL = "acme/chat-8b", "acme/chat-8b-legal"
VLLM = {
    "object": "list",
    "data": [
        {"id": CHAT, "object": "model", "root": "/models/chat", "parent": None},
        {"id": "chat", "object": "model", "root": "/models/chat", "parent": None},
        {"id": LEGAL, "object": "model", "root": "/adapters/legal", "parent": CHAT},
    ],
}


def listing(*models: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answer with these models."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": model} for model in models]})

    return answer


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[Engine]:
    """Run an engine that serves one model."""
    async with serving_any(port) as engine:
        engine.answer = listing(CHAT)
        yield engine


class Learning:
    """A registry and a learner that feeds it."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.faulty = False
        self.changes: list[Change] = []
        self.failures: list[str] = []

    def change(self, change: Change) -> None:
        """Keep a change, or fail where the test says so."""
        if self.faulty:
            raise ZeroDivisionError
        self.changes.append(change)

    def fail(self, _: Endpoint, reason: str, __: Exception) -> None:
        """Keep the reason."""
        self.failures.append(reason)

    def list(self, *addresses: str, models: frozenset[str] = frozenset()) -> None:
        """Make these the endpoints of the pool."""
        self.registry.replace("p", [EndpointSpec(address=each, models=models) for each in addresses])

    def known(self, address: str) -> set[str]:
        """Return what the registry knows of an endpoint."""
        return set(self.registry.snapshot.by_address[address].models)

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[None]:
        """Learn while the test runs, and leave no task behind."""
        before = asyncio.all_tasks()
        async with aiohttp.ClientSession() as session:
            learner = ModelLearner(session, self.registry, self.change, self.fail, **options)
            task = asyncio.create_task(learner.run())
            try:
                yield
            finally:
                assert not task.done(), "learning ended"
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert not [each for each in asyncio.all_tasks() - before if "_follow" in repr(each)]


def test_adapters_and_further_names_are_told_from_base_models() -> None:
    """A listing of vLLM names the base model, an alias of it and an adapter; all of them can be asked for."""
    found = read_listing(json.dumps(VLLM).encode())
    assert found.models == {CHAT, "chat", LEGAL}
    assert found.secondary == {"chat", LEGAL}


def test_an_engine_may_serve_several_base_models() -> None:
    """Names without root and parent are models of their own."""
    found = read_listing(b'{"data": [{"id": "a"}, {"id": "b", "root": null}, {"id": "c", "root": 7}]}')
    assert found == Listing(models=frozenset("abc"), secondary=frozenset())


@pytest.mark.parametrize("length", [256, 257, 5_000])
def test_a_name_of_any_length_is_the_one_that_requests_ask_for(length: int) -> None:
    """Long names are kept by a digest on both sides, so that an engine's own name is never unknown."""
    name = "p" * length
    (listed,) = read_listing(json.dumps({"data": [{"id": name}]}).encode()).models
    route = classify("POST", "/v1/chat/completions")
    assert route is not None
    body = json.dumps({"model": name, "messages": []}).encode()
    assert parse(route, RequestHead(), body, complete=True).model == listed
    assert len(listed) <= 256


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"<html>", "not_json"),
        (b'{"data": [{"id": "\xff"}]}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "not_a_list"),
        (b'{"data": {"id": "a"}}', "not_a_list"),
        (b'{"data": []}', "no_models"),
        (b'{"data": [1, null, {"id": 3}, {"id": ""}]}', "no_models"),
    ],
    ids=["empty", "HTML", "not UTF-8", "nested", "array", "object", "no entries", "no names"],
)
def test_a_body_that_lists_no_models_has_a_reason(body: bytes, reason: str) -> None:
    """Nothing an engine sends is taken for a listing if it is none."""
    with pytest.raises(ListingError) as caught:
        read_listing(body)
    assert caught.value.reason == reason


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["data", "id", "root", "parent"]) | st.text(), inner)
    ),
)


@given(st.binary() | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_understood_or_refused(body: bytes) -> None:
    """Whatever comes, the result is a listing with names or a ListingError."""
    with suppress(ListingError):
        found = read_listing(body)
        assert found.secondary <= found.models


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"", 401), "http_401"),
        (page(b"", 404), "http_404"),
        (page(b"", 503), "http_503"),
        (page(b"", 307, location="http://127.0.0.1:1/v1/models"), "http_307"),
        (page(b"nonsense", 200), "not_json"),
        (page(b" " * (MAX_BYTES + 1)), "too_large"),
        (hang, "timeout"),
        (drip, "timeout"),
        (drop, "unreachable"),
    ],
    ids=["401", "404", "503", "redirect", "bad JSON", "huge", "hangs", "drips", "drops"],
)
async def test_an_engine_that_does_not_list_its_models_is_tolerated(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], reason: str
) -> None:
    """Each way to fail has its reason and ends in time."""
    async with serving() as engine, aiohttp.ClientSession() as session:
        engine.answer = answer
        with pytest.raises(ListingError) as caught:
            await fetch_listing(session, engine.address, timeout_s=0.3)
    assert caught.value.reason == reason


async def test_an_endpoint_is_learnt_when_it_appears_and_forgotten_when_it_goes() -> None:
    """Endpoints added while learning runs are asked too, and one that left is asked no more."""
    learning = Learning()
    async with serving() as one, serving() as two, learning.running(refresh_s=0.05):
        two.answer = listing("other")
        learning.list(one.address)
        await until(lambda: learning.known(one.address) == {CHAT})
        learning.list(two.address)
        await until(lambda: learning.known(two.address) == {"other"})
        asked_by_then = len(one.asked)
        seen = len(two.asked)
        await until(lambda: len(two.asked) > seen + 3)
        assert len(one.asked) == asked_by_then
    assert [change.updated[0].address for change in learning.changes] == [one.address, two.address]


async def test_declared_models_are_not_asked_for() -> None:
    """An engine whose models are declared is left alone while others are asked."""
    learning = Learning()
    async with serving() as declared, serving() as other, learning.running():
        learning.registry.replace("d", [EndpointSpec(address=declared.address, models=frozenset({"m"}))])
        learning.list(other.address)
        await until(lambda: len(other.asked) > 0)
    assert len(declared.asked) == 0
    assert learning.known(declared.address) == {"m"}


async def test_a_refresh_notices_other_adapters() -> None:
    """What an engine serves may change while it runs, and only changes are reported."""
    learning = Learning()
    async with serving() as engine, learning.running(refresh_s=0.05):
        learning.list(engine.address)
        await until(lambda: len(engine.asked) > 3)
        engine.answer = listing(CHAT, LEGAL)
        await until(lambda: learning.known(engine.address) == {CHAT, LEGAL})
    assert len(learning.changes) == 2


async def test_an_engine_that_starts_late_is_learnt_and_its_failure_reported_once() -> None:
    """It is asked again until it answers, and the log is not filled meanwhile (I16)."""
    learning = Learning()
    async with serving() as engine, learning.running():
        engine.answer = page(b"", 503)
        learning.list(engine.address)
        await until(lambda: len(engine.asked) >= 3)
        engine.answer = listing(CHAT)
        await until(lambda: learning.known(engine.address) == {CHAT})
    assert learning.failures == ["http_503"]


async def test_an_engine_that_stops_answering_keeps_what_is_known_of_it() -> None:
    """A failed refresh takes nothing away, and after the engine's return its list is read again."""
    learning = Learning()
    async with learning.running(refresh_s=0.05):
        async with serving() as engine:
            learning.list(engine.address)
            await until(lambda: learning.known(engine.address) == {CHAT})
        await until(lambda: learning.failures == ["unreachable"])
        assert learning.known(engine.address) == {CHAT}
        async with serving(int(engine.address.rpartition(":")[2])) as returned:
            returned.answer = listing("other")
            await until(lambda: learning.known(engine.address) == {"other"})


async def test_an_engine_that_returns_is_asked_within_five_seconds() -> None:
    """However often it failed, one more time limit and the longest wait stay below that (I16)."""
    async with aiohttp.ClientSession() as session:
        learner = ModelLearner(session, Registry(), lambda _: None, lambda *_: None)
    waits = [learner._wait(failures) for failures in range(1, 200)]
    assert TIMEOUT_S + max(waits) < 5
    assert min(waits) > 0.1


async def test_engines_that_hang_do_not_keep_others_from_being_learnt() -> None:
    """Even with one question at a time a hanging engine costs the others its time limit only (E22)."""
    learning = Learning()
    async with serving() as hanging, serving() as good, learning.running(timeout_s=0.1, concurrency=1):
        hanging.answer = hang
        learning.list(hanging.address, good.address)
        await until(lambda: learning.known(good.address) == {CHAT})
        await until(lambda: learning.failures == ["timeout"])


async def test_a_fault_in_a_callback_does_not_end_learning() -> None:
    """What the caller does with a change cannot stop the next question."""
    learning = Learning()
    learning.faulty = True
    async with serving() as engine, learning.running():
        learning.list(engine.address)
        await until(lambda: len(engine.asked) >= 2)
    assert learning.failures == ["internal"]
