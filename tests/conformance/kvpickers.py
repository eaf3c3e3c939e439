"""Starts kvpicker as the profiles of gateways configure it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from ext_proc.conformance.modes import Mode
from tests.waiting import until

MODEL: Final = "acme/chat-8b"
ENDPOINTS: Final = ("10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.12:8001", "[2001:db8::11]:8000")

_CONFIG: Final = """
listen: ["127.0.0.1:0", "unix:{socket}"]
transport: {transport}
{tls}
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
passing_s: 0
scrape: {{enabled: false}}
health: {{probes: {{enabled: false}}}}
envoy: {envoy}
failure_mode: {failure_mode}
pools:
  main: {{endpoints: {endpoints}, models: [{model}]}}
"""


class Setting(NamedTuple):
    """How kvpicker is configured, and in which modes its data planes send bodies.

    Attributes:
        modes: those modes.
        envoy: what Envoy and kvpicker agree on.
        failure_mode: what a fault of kvpicker means.
        transport: how the gRPC server is driven.
        tls: whether it speaks TLS by TCP, with a certificate of its own.
        single: whether its data planes take one address only.
    """

    modes: tuple[Mode, ...]
    envoy: str
    failure_mode: str
    transport: str
    tls: bool = False
    single: bool = True


SETTINGS: Final = {
    "lean": Setting((Mode.LEAN, Mode.STREAMED), "{data_plane: override-host}", "open", "queue", single=False),
    "buffered": Setting((Mode.BUFFERED,), "{data_plane: subset, max_message_timeout_s: 0}", "refuse", "aio"),
    "duplex": Setting((Mode.DUPLEX,), "{data_plane: auto}", "refuse", "auto", tls=True),
}


@contextlib.asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """Run kvpicker in a setting, and yield where it listens: by TCP and on a Unix socket."""
    setting = SETTINGS[name]
    text = _CONFIG.format(
        socket=folder / "kvpicker.sock",
        transport=setting.transport,
        tls="tls: {}" if setting.tls else "",
        envoy=setting.envoy,
        failure_mode=setting.failure_mode,
        endpoints=json.dumps(ENDPOINTS),
        model=MODEL,
    )
    path, log = folder / "kvpicker.yaml", folder / "kvpicker.log"
    path.write_text(text, "utf-8")
    with log.open("wb") as output:
        command = [sys.executable, "-m", "ext_proc.cli", "serve", str(path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        try:
            await until(lambda: bool(_addresses(log)) or process.returncode is not None)
            yield _addresses(log)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _addresses(log: Path) -> tuple[str, ...]:
    for line in log.read_text("utf-8").splitlines():
        if '"server_started"' in line:
            return tuple(json.loads(line)["grpc"])
    return ()
