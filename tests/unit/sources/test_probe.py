"""Probing again and again, of real HTTP servers."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ext_proc.config import parse
from ext_proc.core.health_states import HealthState, Verdict
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.probe import Prober, _Watch
from ext_proc.sources.probe_ask import Finding, LocalError, failure, is_local
from tests.unit.sources.serving import cut, drip, drop, hang, only_at, page, redirecting, serving
from tests.waiting import until

FAST = "interval_s: 0.2, unwell_interval_s: 0.1, timeout_s: 0.3"


def config(probes: str = "") -> Any:
    """Make a configuration that probes five times a second."""
    return parse(f"health: {{probes: {{{FAST}{probes}}}}}\npools: {{p: {{endpoints: ['10.0.0.1:80']}}}}")


class Probing:
    """A registry, a prober of its endpoints, and notes of what it found."""

    def __init__(self, probes: str = "", engine: str = "") -> None:
        self.registry = Registry()
        self.faulty = False
        self.found: Counter[str] = Counter()
        self.verdicts: list[Verdict | None] = []
        self.state = HealthState.READY
        self.keys = ApiKeys()
        self.believed: bool | None = False
        self.asleep: list[bool | None] = []
        self.prober = Prober(
            config(probes),
            registry=self.registry,
            state=lambda _: self.state,
            engine=lambda _: engine,
            listener=self,
            keys=self.keys,
            believed=lambda _: self.believed,
            rng=random.Random(7),
        )

    def probed(self, endpoint: Endpoint, finding: Finding | None) -> None:
        """Count it, or fail where the test says so."""
        if self.faulty:
            raise ZeroDivisionError
        self.found["local" if finding is None else finding.found] += 1
        self.asleep.append(None if finding is None else finding.asleep)
        self.verdicts.append(None if finding is None else finding.verdict)

    def list(self, *addresses: str, **spec: Any) -> None:
        """Make these the endpoints of the pool."""
        self.registry.replace("p", [EndpointSpec(address=address, **spec) for address in addresses])


@asynccontextmanager
async def probing(*addresses: str, probes: str = "", engine: str = "", **spec: Any) -> AsyncIterator[Probing]:
    """Probe while the context lasts."""
    made = Probing(probes, engine)
    made.list(*addresses, **spec)
    task = asyncio.create_task(made.prober.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_engine_is_asked_again_and_again() -> None:
    """At its page of health, each time by a connection of its own."""
    async with serving() as engine, probing(engine.address) as made:
        await until(lambda: made.found["http_200"] >= 3)
        assert set(engine.asked) == {"/health"}
        assert set(made.verdicts) == {Verdict.GOOD}


@pytest.mark.parametrize(("engine", "path"), [("triton", "/v2/health/ready"), ("ollama", "/api/version")])
async def test_the_page_is_the_engines(engine: str, path: str) -> None:
    """Engines have their own; one that is configured goes before."""
    async with serving() as server:
        async with probing(server.address, engine=engine) as made:
            await until(lambda: made.found["http_200"] >= 1)
        async with probing(server.address, engine=engine, probes=", path: /own") as made:
            await until(lambda: made.found["http_200"] >= 1)
        assert {path, "/own"} == set(server.asked)


@pytest.mark.parametrize(
    ("answer", "found", "verdict"),
    [
        (hang, "timeout", Verdict.FAILED),
        (drip, "http_200", Verdict.GOOD),
        (drop, "reset", Verdict.FAILED),
        (cut, "http_200", Verdict.GOOD),
        (page(b"", 500), "http_500", Verdict.FAILED),
        (page(b"", 503, Retry_After="1"), "http_503", Verdict.BUSY),
        (page(b"Loading model", 503), "http_503", Verdict.LOADING),
        (only_at("/other", b""), "http_404", Verdict.UNSUPPORTED),
        (redirecting("http://127.0.0.1:1/", b""), "http_200", Verdict.GOOD),
    ],
)
async def test_whatever_a_server_does_is_found(answer: Any, found: str, verdict: Verdict) -> None:
    """Nothing that it answers, or does not, ends the probing."""
    async with serving() as engine:
        engine.answer = answer
        async with probing(engine.address) as made:
            await until(lambda: made.found[found] >= 2)
            assert set(made.verdicts) == {verdict}


async def test_a_server_that_is_gone_is_found() -> None:
    """Nobody listens, then somebody does again."""
    async with serving() as engine:
        address = engine.address
    async with probing(address) as made:
        await until(lambda: made.found["refused"] >= 2)
        async with serving(int(address.rpartition(":")[2])):
            await until(lambda: made.found["http_200"] >= 1)


async def test_another_protocol_is_no_failure() -> None:
    """Who answers without speaking HTTP is there at least."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server, probing(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as made:
        await until(lambda: made.found["not_http"] >= 1)
        assert made.verdicts[0] is Verdict.UNSUPPORTED


async def test_an_endpoint_in_doubt_is_probed_at_once() -> None:
    """Its next turn may be a minute away."""
    async with serving() as engine, probing(engine.address) as made:
        made.prober.configure(parse("health: {probes: {interval_s: 600}}\npools: {p: {endpoints: ['10.0.0.1:80']}}"))
        await until(lambda: made.found["http_200"] >= 1)
        (endpoint,) = made.registry.snapshot.endpoints
        seen = made.found["http_200"]
        made.prober.hurry(endpoint)
        await until(lambda: made.found["http_200"] > seen)


async def test_the_unwell_are_probed_more_often() -> None:
    """To let them back in soon."""
    async with serving() as engine, probing(engine.address) as made:
        settings = "interval_s: 600, unwell_interval_s: 0.1"
        made.prober.configure(
            parse(f"health: {{probes: {{{settings}}}}}\npools: {{p: {{endpoints: ['10.0.0.1:80']}}}}")
        )
        made.state = HealthState.EJECTED
        await until(lambda: made.found["http_200"] >= 3)


async def test_who_looks_well_is_asked_again_soon() -> None:
    """A newcomer waits for its second good answer no longer than it must, whatever the intervals."""
    async with serving() as engine:
        made = Probing()
        made.state = HealthState.WARMING
        slow = "interval_s: 60, unwell_interval_s: 60"
        made.prober.configure(parse(f"health: {{probes: {{{slow}}}}}\npools: {{p: {{endpoints: ['10.0.0.1:80']}}}}"))
        made.list(engine.address)
        task = asyncio.create_task(made.prober.run())
        await until(lambda: made.found["http_200"] >= 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("state", "verdict", "pause"),
    [
        (HealthState.READY, Verdict.GOOD, 0.2),
        (HealthState.DEGRADED, Verdict.GOOD, 0.2),
        (HealthState.READY, Verdict.FAILED, 0.1),
        (HealthState.EJECTED, Verdict.FAILED, 0.1),
        (HealthState.WARMING, Verdict.LOADING, 0.1),
    ],
)
def test_the_pace_depends_on_the_state(state: HealthState, verdict: Verdict, pause: float) -> None:
    """A degraded endpoint may stay so for hours, and serves: there is no hurry."""
    made = Probing()
    made.list("10.0.0.1:80")
    made.state = state
    watch = _Watch(made.registry.snapshot.endpoints[0])
    watch.verdict = verdict
    assert made.prober._pause(watch) == pytest.approx(pause, rel=0.21)


async def test_one_token_is_generated_where_that_is_asked_for() -> None:
    """An engine whose core hangs behind a server that answers is found by it."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        asked.append(json.loads(await request.read()))
        return web.Response(status=500)

    async with serving() as engine:
        engine.answer = answer
        async with probing(engine.address, probes=", generate: true", models=frozenset({"b", "a"})) as made:
            await until(lambda: made.found["generation_http_500"] >= 1)
        assert set(made.verdicts) == {Verdict.FAILED}
        assert asked[0] == {"model": "a", "prompt": "1", "max_tokens": 1}


async def test_engines_that_want_a_key_get_it_with_each_probe() -> None:
    """Otherwise 401 would be the answer to a generation, which says nothing, and a hanging engine would stay."""
    keys: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        keys.append((request.path, request.headers.get("Authorization")))
        return web.Response()

    async with serving() as engine:
        engine.answer = answer
        async with probing(engine.address, probes=", generate: true") as made:
            made.keys.use({"p": {"Authorization": "Bearer open"}})
            await until(lambda: ("/v1/completions", "Bearer open") in keys and ("/health", "Bearer open") in keys)


async def test_the_registry_is_followed() -> None:
    """Who comes is probed, who goes is not any more, and nobody is while probing is off."""
    async with serving() as one, serving() as other, probing(one.address) as made:
        await until(lambda: bool(one.asked))
        made.list(other.address)
        await until(lambda: bool(other.asked))
        await until(lambda: len(made.prober._watches) == 1)
        made.prober.configure(config(", enabled: false"))
        await until(lambda: not made.prober._watches)
        assert not made.prober.is_degraded(time.monotonic() + 1000.0)


async def test_a_listener_that_fails_ends_nothing() -> None:
    """The next probe is made all the same."""
    async with serving() as engine, probing(engine.address) as made:
        made.faulty = True
        await until(lambda: len(engine.asked) >= 2)
        made.faulty = False
        await until(lambda: made.found["http_200"] >= 1)


async def test_a_failure_of_this_machine_is_none_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without file descriptors nobody can be probed: that is said, and nobody is taken to be ill."""

    def exhausted(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with serving() as engine, probing(engine.address) as made:
        await until(lambda: made.found["http_200"] >= 1)
        monkeypatch.setattr(aiohttp.ClientSession, "get", exhausted)
        await until(lambda: made.found["local"] >= 1)
        assert Verdict.FAILED not in made.verdicts
        assert not made.prober.is_degraded(time.monotonic())
        assert made.prober.is_degraded(time.monotonic() + 10.0)
        monkeypatch.undo()
        seen = made.found["http_200"]
        await until(lambda: made.found["http_200"] > seen)
        assert not made.prober.is_degraded(time.monotonic())


def test_failures_are_told_apart() -> None:
    """By what the operating system says."""
    assert is_local(OSError(errno.ENFILE, ""))
    assert not is_local(OSError(errno.ECONNREFUSED, ""))
    assert not is_local(None)
    with pytest.raises(LocalError):
        failure(OSError(errno.ENOBUFS, ""))
    assert failure(ConnectionResetError()) == Finding(Verdict.FAILED, "reset")
    with pytest.raises(ZeroDivisionError):
        failure(ZeroDivisionError())
