"""Runs an Envoy."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from ext_proc.bootstrap.binary import find_envoy, validate, version
from ext_proc.core.errors import ConfigError
from ext_proc.local import processes

__all__ = ["EnvoyProcess", "find_envoy", "validate", "version"]

START_TIMEOUT = 30.0
POLL_INTERVAL = 0.05
LOG_TAIL = 4000


class EnvoyProcess:
    """One Envoy, running for the length of an `async with` block, with a private folder for what it needs.

    Args:
        config: the bootstrap as YAML; it must have an admin interface, whose port may be 0.
        binary: what `find_envoy` returned.
        concurrency: number of worker threads; None lets Envoy take one per core.
        log_level: Envoy's name for it; `warning` is noisy with notes on unfinished extensions.
        start_timeout: seconds that Envoy may take until it is ready.
        parent: where its private folder is made; None takes the system's place for temporary files.
    """

    def __init__(
        self,
        config: str,
        binary: Path,
        *,
        concurrency: int | None = None,
        log_level: str = "error",
        start_timeout: float = START_TIMEOUT,
        parent: Path | None = None,
    ) -> None:
        self._config = config
        self._binary = binary
        self._concurrency = concurrency
        self._log_level = log_level
        self._start_timeout = start_timeout
        self._parent = parent
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._admin = ""

    async def __aenter__(self) -> Self:
        """Start it and wait until it serves; raises ConfigError with the end of its log if it does not."""
        try:
            await self._start()
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it and remove its folder."""
        await self.stop()

    async def stop(self) -> None:
        """Stop it; harmless if it is stopped already."""
        if self._process is not None:
            await processes.stop(self._process)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def wait(self) -> int:
        """Wait until it ends, for whatever reason; returns its exit code."""
        if self._process is None:
            raise RuntimeError("not started")
        return await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def admin_url(self) -> str:
        """Where its admin interface listens: `http://ip:port`, or `unix:/path`."""
        return f"unix:{self._admin}" if self._admin.startswith("/") else f"http://{self._admin}"

    @property
    def log(self) -> str:
        """The end of what it has logged."""
        return self._read("log")[-LOG_TAIL:]

    async def port(self, listener: str | None = None) -> int:
        """The port that a listener got, by its name; the first listener's without one."""
        answer: dict[str, Any] = await self._get("/listeners?format=json", parse=True)
        for status in answer["listener_statuses"]:
            if listener in {None, status["name"]}:
                return int(status["local_address"]["socket_address"]["port_value"])
        raise ConfigError(f"no listener {listener or ''!r}")

    async def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges whose name starts with `prefix`, whole names to values."""
        answer: dict[str, Any] = await self._get("/stats?format=json", parse=True)
        return {
            entry["name"]: entry["value"]
            for entry in answer["stats"]
            if "value" in entry and entry["name"].startswith(prefix)
        }

    async def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvpicker-envoy-", dir=self._parent)
        config, admin, log = (Path(self._folder.name, name) for name in ("envoy.yaml", "admin", "log"))
        config.write_text(self._config, encoding="utf-8")
        command: list[str | Path] = [self._binary, "-c", config, "--admin-address-path", admin]
        command += ["--log-level", self._log_level, "--disable-hot-restart"]
        if self._concurrency is not None:
            command += ["--concurrency", str(self._concurrency)]
        with log.open("wb") as output:
            try:
                self._process = await processes.spawn(*command, output=output)
            except OSError as error:
                raise ConfigError(f"cannot start {self._binary}: {error}", path="envoy") from error

    async def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not await self._is_ready():
            if not self.running:
                raise ConfigError(f"Envoy ended while starting: {self.log}")
            if time.monotonic() > deadline:
                raise ConfigError(f"Envoy was not ready after {self._start_timeout:.0f} s: {self.log}")
            await asyncio.sleep(POLL_INTERVAL)

    def _read(self, name: str) -> str:
        """Text of a file in its folder; empty while there is none."""
        if self._folder is None or not (file := Path(self._folder.name, name)).exists():
            return ""
        return file.read_text(encoding="utf-8", errors="replace").strip()

    async def _is_ready(self) -> bool:
        self._admin = self._read("admin")
        if not self._admin:
            return False
        try:
            return bool(await self._get("/ready", parse=False) == "LIVE\n")
        except (aiohttp.ClientError, OSError):
            return False

    async def _get(self, path: str, *, parse: bool) -> Any:
        unix = self._admin.startswith("/")
        connector = aiohttp.UnixConnector(self._admin) if unix else aiohttp.TCPConnector()
        host = "admin" if unix else self._admin
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://{host}{path}") as response,
        ):
            return await response.json(content_type=None) if parse else await response.text()
