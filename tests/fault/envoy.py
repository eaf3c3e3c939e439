"""An Envoy that can hand over to a successor while it serves, and counts attempts for each engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from ext_proc.bootstrap.names import ENDPOINTS
from ext_proc.local import processes
from ext_proc.local.lifeline import Lifeline
from tests.waiting import until


class HostCounts(msgspec.Struct, frozen=True):
    """What Envoy counted of one engine.

    Attributes:
        attempts: requests that it sent or tried to send there.
        failures: those of them that came to nothing.
    """

    attempts: int = 0
    failures: int = 0


class Envoy:
    """One Envoy after the other on one port.

    Args:
        folder: where its files live.
        binary: what to run.
        lifeline: ends it if this process is killed.
    """

    def __init__(self, folder: Path, binary: Path, lifeline: Lifeline) -> None:
        self.url = ""
        self._folder = folder
        self._binary = binary
        self._lifeline = lifeline
        self._epoch = 0
        self._running: list[asyncio.subprocess.Process] = []

    async def start(self, config: str) -> None:
        """Start the first, and wait until it serves."""
        (self._folder / "envoy.yaml").write_text(config)
        (listener,) = yaml.safe_load(config)["static_resources"]["listeners"]
        address = listener["address"]["socket_address"]
        self.url = f"http://{address['address']}:{address['port_value']}"
        await self._spawn()

    async def hot_restart(self) -> None:
        """Start a successor, which takes over the sockets; the predecessor leaves when its streams have ended."""
        self._epoch += 1
        await self._spawn()

    async def stop(self) -> None:
        """Stop all that run."""
        for process in self._running:
            await processes.stop(process)
            self._lifeline.forget(process.pid)
        self._running.clear()

    async def counts(self) -> dict[str, HostCounts]:
        """Return what it counted, by the engine's address."""
        found: dict[str, HostCounts] = {}
        for cluster in (await self._get("/clusters?format=json"))["cluster_statuses"]:
            if cluster["name"] != ENDPOINTS:
                continue
            for host in cluster.get("host_statuses", ()):
                at = host["address"]["socket_address"]
                stats = {one["name"]: int(one.get("value", 0)) for one in host["stats"]}
                broken, refused = stats.get("rq_error", 0), stats.get("cx_connect_fail", 0)
                found[f"{at['address']}:{at['port_value']}"] = HostCounts(stats["rq_total"] + refused, broken + refused)
        return found

    async def _spawn(self) -> None:
        admin, log = self._folder / f"envoy-admin-{self._epoch}", self._folder / "envoy.log"
        command: list[str | Path] = [self._binary, "-c", self._folder / "envoy.yaml", "--admin-address-path", admin]
        command += ["--log-level", "error", "--concurrency", "1", "--restart-epoch", str(self._epoch)]
        command += ["--drain-time-s", "3", "--parent-shutdown-time-s", "20"]
        number = self._folder / "base-id"  # by which a successor finds it
        command += ["--base-id", _read(number)] if self._epoch else ["--use-dynamic-base-id", "--base-id-path", number]
        with log.open("ab") as output:
            process = await processes.spawn(*command, output=output)
        self._lifeline.watch(process.pid)
        self._running.append(process)
        await until(lambda: process.returncode is not None or self._serves(admin))
        assert process.returncode is None, log.read_text()[-2000:]

    async def _serves(self, admin: Path) -> bool:
        if not _read(admin):
            return False
        with contextlib.suppress(aiohttp.ClientError):
            return bool((await self._get("/server_info"))["state"] == "LIVE")
        return False

    async def _get(self, path: str) -> Any:
        admin = _read(self._folder / f"envoy-admin-{self._epoch}")
        async with aiohttp.ClientSession() as session, session.get(f"http://{admin}{path}") as answer:
            return await answer.json(content_type=None)


def _read(file: Path) -> str:
    """Read a file; empty while there is none."""
    return file.read_text() if file.exists() else ""
