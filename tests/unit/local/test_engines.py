"""The engines that `kvpicker up` is given."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from ext_proc.core.errors import ConfigError
from ext_proc.local.engines import Engine, find_given
from ext_proc.sim.engine import EngineOptions, SimEngine

BAD_URLS = {
    "https": ("https://127.0.0.1:8000", "plain HTTP"),
    "no scheme": ("127.0.0.1:8000", "write http://HOST:PORT"),
    "other scheme": ("grpc://127.0.0.1:8000", "write http://HOST:PORT"),
    "no host": ("http://:8000", "write http://HOST:PORT"),
    "empty": ("", "write http://HOST:PORT"),
    "port zero": ("http://127.0.0.1:0", "write http://HOST:PORT"),
    "port too large": ("http://127.0.0.1:70000", "is no URL"),
    "bracket missing": ("http://[::1", "is no URL"),
    "path": ("http://127.0.0.1:8000/v1", "leave out everything after the port"),
    "query": ("http://127.0.0.1:8000?a=b", "leave out everything after the port"),
    "user": ("http://me:secret@127.0.0.1:8000", "user or password"),
    "unknown host": ("http://no-such-host.invalid:8000", "cannot be resolved"),
}


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    """An engine with two models."""
    async with SimEngine(EngineOptions(models=("zeta", "alpha"))) as engine:
        yield engine


@pytest.mark.parametrize(("url", "message"), BAD_URLS.values(), ids=BAD_URLS)
async def test_a_url_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ConfigError, match=message):
        await find_given([url])


async def test_a_refused_url_does_not_show_its_password() -> None:
    """A credential must not reach a terminal or a log."""
    with pytest.raises(ConfigError) as refused:
        await find_given(["http://me:secret@127.0.0.1:8000"])
    assert "secret" not in str(refused.value)


async def test_models_keep_the_order_of_the_engine(engine: SimEngine) -> None:
    """The first one listed is the one that the demonstration asks for."""
    (found,) = await find_given([engine.url])
    assert found == Engine(name=engine.address, address=engine.address, models=("zeta", "alpha"))


async def test_a_host_name_is_resolved(engine: SimEngine) -> None:
    """Envoy is given an address, and a slash at the end does no harm."""
    port = engine.address.rpartition(":")[2]
    (found,) = await find_given([f"http://127.1:{port}/"])
    assert found.address == engine.address


async def test_an_engine_given_twice_is_refused(engine: SimEngine) -> None:
    """Two names of one engine would count its memory twice."""
    with pytest.raises(ConfigError, match="is the same engine as"):
        await find_given([engine.url, engine.url + "/"])


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [(401, "{}", "status 401"), (200, "hello", "not_json"), (200, '{"data": []}', "no_models")],
    ids=["wants a key", "no JSON", "no models"],
)
async def test_a_server_that_is_no_engine_is_refused(status: int, body: str, message: str) -> None:
    """What is wrong with the answer is in the message."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=body)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with pytest.raises(ConfigError, match=message):
            await find_given([f"http://127.0.0.1:{runner.addresses[0][1]}"])
    finally:
        await runner.cleanup()


def test_a_given_engine_is_asked_for_its_models_by_kvpicker() -> None:
    """Nothing but its address is configured, since only it knows the rest."""
    assert Engine(name="e", address="10.0.0.1:80", models=("m",)).settings == {"address": "10.0.0.1:80"}


def test_a_simulated_engine_is_configured_in_full() -> None:
    """What the simulation is like is known."""
    settings = Engine(name="sim-1", address="127.0.0.1:80", models=("m",), simulated=True).settings
    assert (settings["kv_tokens"], settings["prefill_rate"]) == (450_000, 37_037)


async def test_an_engine_that_is_not_there_is_named() -> None:
    """The message holds the URL as the user wrote it."""
    with socket.socket() as nobody:  # bound, but it does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{url} cannot be reached: connection refused; is the engine running"):
            await find_given([url])
