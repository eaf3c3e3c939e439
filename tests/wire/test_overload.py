"""Overload behind a real Envoy: caps, waiting, 429 with Retry-After, and who goes first."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.waiting import until
from tests.wire.stack import MODEL, Stack, received, running_stack

TENANTS = "tenants: {header: x-tenant, priority_header: x-priority, priorities: {urgent: 10}}\n"


@asynccontextmanager
async def capped(folder: Path, *, queue: str = "{}", more: str = "", **options: Any) -> AsyncIterator[Stack]:
    """Run one engine that may hold one request; its access log comes at once."""
    pool = f"    models: [{MODEL}]\n    caps: {{requests: 1}}\n    queue: {queue}\n{more}"
    options = {"engines": 1, "log_flush": 0.01, "log_buffer": 1, "speed": 1.0, **options}
    async with running_stack(folder, pool=pool, **options) as running:
        yield running
        assert await running.violations() == {}
        stats = await running.envoy.stats("http.")
        assert not [name for name, count in stats.items() if name.endswith("failure_mode_allowed") and count]


Asked: TypeAlias = "asyncio.Task[tuple[int, dict[str, str], bytes]]"


def ask(stack: Stack, text: str, tokens: int = 30, path: str = "/v1/chat/completions", **headers: str) -> Asked:
    """Send a chat in the background."""
    body = {"model": MODEL, "max_tokens": tokens, "ignore_eos": True, "messages": [{"role": "user", "content": text}]}
    return asyncio.create_task(stack.post(path, body, **headers))


async def waiting(stack: Stack, count: int) -> None:
    """Wait until so many requests wait for their turn."""
    await until(lambda: len(stack.service._core.admission) == count)


async def held(stack: Stack, tokens: int = 400) -> Asked:
    """Let a request hold the only place for a while."""
    asked = ask(stack, "hold", tokens)
    await until(lambda: len(stack.service._core.ledger) == 1)
    return asked


async def drop(asked: Asked) -> None:
    """Let a client hang up."""
    asked.cancel()
    with suppress(asyncio.CancelledError):
        await asked


@pytest.mark.parametrize("transport", ["queue", "aio"])
async def test_who_finds_all_endpoints_full_waits_and_is_answered(tmp_path: Path, transport: str) -> None:
    """Beyond Envoy's usual patience, and one after the other."""
    async with capped(tmp_path, transport=transport, message_timeout=0.2) as stack:
        asked = [ask(stack, f"question {number}") for number in range(4)]
        await waiting(stack, 3)
        answers = await asyncio.gather(*asked)
        assert [status for status, _, _ in answers] == [200] * 4
        stats = await stack.envoy.stats("http.")
        assert sum(n for name, n in stats.items() if name.endswith("override_message_timeout_received")) == 3
        waited = sorted(outcome.duration for outcome in await stack.outcomes(4))
        assert waited[-1] > 2.5 * waited[0] > 0.2
        assert len(stack.service._core.ledger) == 0


async def test_a_full_queue_is_429_in_the_shape_of_the_api(tmp_path: Path) -> None:
    """With Retry-After and the reason, for the clients of both APIs."""
    async with capped(tmp_path, queue="{max_requests: 1}") as stack:
        holds = [await held(stack), ask(stack, "waits")]
        await waiting(stack, 1)
        for path, shape in (("/v1/chat/completions", "code"), ("/v1/messages", "type")):
            status, headers, body = await ask(stack, "too many", path=path)
            assert status == 429
            assert int(headers["retry-after"]) >= 1
            assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            told = json.loads(body)
            assert shape in (told if path == "/v1/messages" else told["error"])
            assert told["error"]["type"] == "rate_limit_error"
        for asked in holds:
            await drop(asked)


async def test_who_comes_back_as_told_is_answered(tmp_path: Path) -> None:
    """Although others fill the queue again and again meanwhile."""
    async with capped(tmp_path, queue="{max_requests: 1}", speed=2.0) as stack:
        stack.service._core.expectations.known(MODEL).residence = 0.5
        crowd = [await held(stack, 100), ask(stack, "waits")]
        await waiting(stack, 1)
        status, headers, _ = await ask(stack, "patient")
        assert status == 429
        end = time.monotonic() + int(headers["retry-after"])
        while time.monotonic() < end:
            crowd.append(ask(stack, f"crowd {len(crowd)}", 20))
            await asyncio.sleep(0.03)
        crowd += [ask(stack, f"crowd {len(crowd)} {number}", 20) for number in range(5)]
        assert (await ask(stack, "patient"))[0] == 200
        statuses = [status for status, _, _ in await asyncio.gather(*crowd)]
        assert statuses.count(429) > len(statuses) / 4


async def test_a_client_that_hangs_up_frees_its_place(tmp_path: Path) -> None:
    """In the queue at once; and the others are served in its stead."""
    async with capped(tmp_path, queue="{max_requests: 2}") as stack:
        first = await held(stack, 60)
        gone, stays = ask(stack, "gone"), None
        await waiting(stack, 1)
        stays = ask(stack, "stays")
        await waiting(stack, 2)
        await drop(gone)
        await waiting(stack, 1)
        assert [status for status, _, _ in await asyncio.gather(first, stays)] == [200, 200]
        await until(lambda: len(stack.service._core.ledger) == 0)
        assert len(await received(stack, "/v1/chat")) == 2


async def test_the_end_of_kvpicker_answers_all_that_wait(tmp_path: Path) -> None:
    """With 503, at once; the running request is not touched."""
    async with capped(tmp_path) as stack:
        running = await held(stack, 60)
        asked = [ask(stack, f"waits {number}") for number in range(3)]
        await waiting(stack, 3)
        await stack.service.__aexit__(None, None, None)
        answers = await asyncio.gather(*asked)
        assert [status for status, _, _ in answers] == [503] * 3
        assert {headers["x-llm-d-request-dropped-reason"] for _, headers, _ in answers} == {"rejected-shutting-down"}
        assert (await running)[0] == 200


async def test_priority_and_fairness_are_by_the_gateways_headers(tmp_path: Path) -> None:
    """The urgent one is first, then the tenants take turns."""
    envoy = {"tenant_header": "x-tenant", "priority_header": "x-priority"}
    async with capped(tmp_path, more=TENANTS, **envoy) as stack:
        asked = [await held(stack, 60)]
        sent = [{"x_tenant": "flood"}] * 4 + [{"x_tenant": "small"}, {"x_priority": "urgent"}]
        for number, headers in enumerate(sent):
            asked.append(ask(stack, f"{headers} {number}", 10, **headers))
            await waiting(stack, number + 1)
        await asyncio.gather(*asked)
        entries = sorted(await received(stack, "/v1/chat"), key=lambda entry: entry["received_at"])
        order = [dict(map(tuple, entry["headers"])) for entry in entries]
        assert order[1].get("x-priority") == "urgent"
        assert "small" in [headers.get("x-tenant") for headers in order[2:4]]


async def test_an_envoy_that_cannot_be_asked_is_answered_in_time(tmp_path: Path) -> None:
    """The wait ends before its patience does; there is no error of Envoy's, and no unexpected message."""
    more = "envoy: {message_timeout_s: 1, max_message_timeout_s: 0}\n"
    async with running_quiet(tmp_path, more) as stack:
        running = await held(stack)
        status, headers, _ = await ask(stack, "waits")
        assert status == 429
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
        await drop(running)


@asynccontextmanager
async def running_quiet(folder: Path, more: str) -> AsyncIterator[Stack]:
    """Run what `capped` does with an Envoy that takes no wishes."""
    more = more.replace("{", f"{{endpoints_file: {folder / 'eds.json'}, ", 1)
    async with capped(folder, more=more, own_envoy=True, message_timeout=1.0, max_message_timeout=0.0) as stack:
        yield stack


async def test_the_first_engine_of_a_pool_is_waited_for(tmp_path: Path) -> None:
    """Scale from zero: the request comes first, then the engine, then the answer (E12)."""
    async with capped(tmp_path, queue="{scale_from_zero_s: 20}") as stack:
        stack.list_engines([])
        await until(lambda: not stack.service._core.registry.snapshot.endpoints)
        asked = ask(stack, "early")
        await waiting(stack, 1)
        stack.list_engines([stack.engines[0].address])
        assert (await asked)[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_without_waiting_an_empty_pool_is_503_at_once(tmp_path: Path, path: str) -> None:
    """In the shape of the API and with Retry-After, so that clients need no logic of their own (E12)."""
    async with capped(tmp_path) as stack:
        stack.list_engines([])
        await until(lambda: not stack.service._core.registry.snapshot.endpoints)
        status, headers, text = await ask(stack, "early", path=path)
        error = json.loads(text)
        assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/json", "1")
        assert error["error"]["message"]
        assert (error.get("type") == "error") is (path == "/v1/messages")


async def test_an_empty_pool_is_503_when_the_wait_is_over(tmp_path: Path) -> None:
    """Then and not before, or never if the client has gone (E12).

    The case's 3 s +- 0.5 s are 1 s to 2 s.
    """
    async with capped(tmp_path, queue="{scale_from_zero_s: 1, max_requests: 2}") as stack:
        stack.list_engines([])
        await until(lambda: not stack.service._core.registry.snapshot.endpoints)
        began = time.monotonic()
        gone, patient = ask(stack, "gone"), ask(stack, "patient")
        await waiting(stack, 2)
        assert (await ask(stack, "one too many"))[0] in {429, 503}
        await drop(gone)
        await waiting(stack, 1)
        status, headers, _ = await patient
        assert (status, headers["retry-after"]) == (503, "1")
        assert 1.0 <= time.monotonic() - began <= 2.0
        assert stack.service._core.admission.fills["main"].bytes == 0
