"""The whole stack on one machine: engines, kvpicker and Envoy, as child processes of this one."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
import yaml

from ext_proc.bootstrap import EnvoyOptions
from ext_proc.bootstrap.binary import find_envoy, version
from ext_proc.bootstrap.names import LISTENER, PROCESSORS
from ext_proc.bootstrap.versions import rendered_as
from ext_proc.core.errors import ConfigError
from ext_proc.local.child import Child, ChildFailed, describe, failed, kvpicker
from ext_proc.local.engines import Engine, find_given, start_simulated
from ext_proc.local.entry import DIRECT, entry_config
from ext_proc.local.envoy import EnvoyProcess
from ext_proc.local.lifeline import Lifeline
from ext_proc.local.options import StackOptions
from ext_proc.local.steps import Steps
from ext_proc.sim.engine import EngineOptions, SimEngine

HOST: Final = "127.0.0.1"
POOL: Final = "engines"
PROBE: Final = "kvpicker-probe"
"""Name of the pool and of the model of the engine against which latency is measured."""

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
"""Whose requests may ask for an explanation: everybody who can reach this machine's gateway."""

READY_TIMEOUT: Final = 30.0
POLL_INTERVAL: Final = 0.05
SETTLE: Final = 0.5
ENVOY_WORKERS: Final = 2

_T = TypeVar("_T")


class Stack:
    """Runs while its context is entered; however that ends, no process and no file stays.

    Attributes:
        binary: the Envoy that is used.
        engines: the engines, without the one that latency is measured against.
        url: where clients connect.
        direct_url: a way through the same Envoy to the measuring engine, past kvpicker.
        admin_url: kvpicker's admin server.
    """

    def __init__(self, options: StackOptions, steps: Steps) -> None:
        self.binary = Path()
        self.engines: list[Engine] = []
        self.url = self.direct_url = self.admin_url = ""
        self._options = options
        self._steps = steps
        self._config = Path()
        self._probe: str | None = None
        self._children: list[Child] = []
        self._envoy: EnvoyProcess | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start everything and wait until a request passes.

        Raises:
            ConfigError: something the user chose cannot be used.
            ChildFailed: a process does not start.
        """
        self.binary = find_envoy(self._options.envoy)
        check_port(self._options.port)
        async with AsyncExitStack() as stack:
            lifeline = await stack.enter_async_context(Lifeline(self._options.parent))
            await self._start_engines(stack, lifeline)
            grpc_address = await self._start_kvpicker(stack, lifeline)
            await self._start_envoy(stack, lifeline, grpc_address)
            with self._steps.step("waiting for the first answer"):
                await self.guard(self._wait_until_ready())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop everything, in the order in which requests pass."""
        await self._stack.aclose()

    @property
    def model(self) -> str:
        """The first model that the first engine lists."""
        return self.engines[0].models[0]

    @property
    def token_file(self) -> Path:
        """The token that changes the state of endpoints, made for this run."""
        return self._config.with_name("admin-token")

    @property
    def simulated(self) -> bool:
        """Whether the engines are simulated ones."""
        return self.engines[0].simulated

    async def guard(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do some work for as long as all processes run.

        Raises:
            ChildFailed: one ended; the work is cancelled.
        """
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._failure())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working.done() and working.exception() is not None:
                # The work often notices first, by a broken connection; the process's own end says more.
                await asyncio.wait({watching}, timeout=SETTLE)
            if watching.done():
                raise watching.result()
            return await working
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def remove_probe(self) -> None:
        """Take the measuring engine out of kvpicker's configuration, which is read again while it runs.

        Raises:
            ChildFailed: kvpicker does not take the change.
        """
        self._probe = None
        self._write_config()
        await poll(self._probe_is_gone, "kvpicker did not take a change of its configuration")

    async def _start_engines(self, stack: AsyncExitStack, lifeline: Lifeline) -> None:
        given = self._options.engines
        if given:
            with self._steps.step(f"asking {_count(len(given), 'engine')} for models"):
                self.engines = await find_given(given)
        else:
            with self._steps.step("starting three simulated engines"):
                self.engines, children = await start_simulated(stack, lifeline)
                self._children += children
        probe = await stack.enter_async_context(SimEngine(EngineOptions(models=(PROBE,), record=0)))
        self._probe = probe.address

    async def _start_kvpicker(self, stack: AsyncExitStack, lifeline: Lifeline) -> str:
        self._config = lifeline.folder / "kvpicker.yaml"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_urlsafe() + "\n", encoding="ascii")
        self._write_config()
        with self._steps.step("starting kvpicker"):
            child = Child("kvpicker", lifeline, *kvpicker("serve", self._config), announces="admin")
            said = await (await stack.enter_async_context(child)).announcement()
        self._children.append(child)
        self.admin_url = f"http://{said['admin']}"
        return str(said["grpc"][0])

    async def _start_envoy(self, stack: AsyncExitStack, lifeline: Lifeline, processor: str) -> None:
        options = EnvoyOptions(
            envoy_version=rendered_as(version(self.binary)),
            listen=f"{HOST}:{self._options.port}",
            admin=f"{HOST}:0",
            processors=(processor,),
            endpoints_file=str(self._endpoints_file),
        )
        with self._steps.step("starting Envoy"):
            # In a thread, because it imports much: signals must be heard meanwhile.
            config = await asyncio.to_thread(entry_config, options, self._probe or "")
            envoy = EnvoyProcess(config, self.binary, concurrency=ENVOY_WORKERS, parent=lifeline.folder)
            self._envoy = await stack.enter_async_context(envoy)
            lifeline.watch(envoy.pid)
            stack.callback(lifeline.forget, envoy.pid)
            self.url = f"http://{HOST}:{await envoy.port(LISTENER)}"
            self.direct_url = f"http://{HOST}:{await envoy.port(DIRECT)}"

    @property
    def _endpoints_file(self) -> Path:
        return self._config.with_name("endpoints.json")

    def _write_config(self) -> None:
        pools: dict[str, Any] = {
            POOL: {
                "strategy": {"name": self._options.strategy},
                "endpoints": [engine.settings for engine in self.engines],
            }
        }
        if self._probe is not None:
            pools[PROBE] = {"endpoints": [{"address": self._probe, "models": [PROBE]}]}
        config = {
            "listen": [f"{HOST}:0"],
            "admin": {"listen": f"{HOST}:0", "token_file": str(self.token_file)},
            "default_pool": POOL,
            "pools": pools,
            "envoy": {"endpoints_file": str(self._endpoints_file)},
            "explain": {"networks": list(LOOPBACK)},
            "drain_s": 0,
        }
        draft = self._config.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        draft.replace(self._config)

    async def _failure(self) -> ChildFailed:
        """Wait until any process ends; returns the error that says so."""
        waits = [asyncio.create_task(child.failure()) for child in self._children]
        if self._envoy is not None:
            waits.append(asyncio.create_task(self._envoy_failure(self._envoy)))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    @staticmethod
    async def _envoy_failure(envoy: EnvoyProcess) -> ChildFailed:
        code = await envoy.wait()
        return failed("Envoy", f"ended with {describe(code)}", envoy.log)

    async def _wait_until_ready(self) -> None:
        async with aiohttp.ClientSession() as session:
            for path in (self.admin_url + "/readyz", self.url + "/v1/models", self.direct_url + "/v1/models"):
                await poll(lambda path=path: _answers(session, path), f"{path} did not answer")  # type: ignore[misc]
        await poll(self._envoy_sees_kvpicker, "Envoy did not find kvpicker healthy")

    async def _envoy_sees_kvpicker(self) -> bool:
        assert self._envoy is not None  # noqa: S101 - started before
        healthy = f"cluster.{PROCESSORS}.membership_healthy"
        return (await self._envoy.stats(healthy)).get(healthy, 0) > 0

    async def _probe_is_gone(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(self.admin_url + "/debug/endpoints") as response:
            endpoints = (await response.json())["endpoints"]
        return all(endpoint["pool"] != PROBE for endpoint in endpoints)


async def poll(condition: Callable[[], Awaitable[bool]], complaint: str, timeout_s: float = READY_TIMEOUT) -> None:
    """Wait until a condition holds.

    Raises:
        ChildFailed: it did not in time; `complaint` says what is wrong.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(POLL_INTERVAL)
    except TimeoutError:
        raise ChildFailed(f"{complaint} within {timeout_s:.0f} s") from None


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.ok
    except aiohttp.ClientError:
        return False


def check_port(port: int) -> None:
    """See whether Envoy will be able to listen; it reports a busy port only in its log.

    Raises:
        ConfigError: it will not.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            problem = "is in use" if busy else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} {problem}; choose another with --port") from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
