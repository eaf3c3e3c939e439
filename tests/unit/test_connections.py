"""Whom kvpicker connects to: those that it was told of, and nobody else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ext_proc.sim.engine import EngineOptions, SimEngine
from tests.unit.sources.tokenizer_files import write

MODEL = "acme/chat-8b"

WATCHED = """
import asyncio, io, json, sys, time

asked, allowed = [], set(json.loads(sys.argv[2]))

def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        asked.append(f"{arguments[1][0]}:{arguments[1][1]}")
    elif event in {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}:
        asked.append(f"{event} {arguments}")
    else:
        return
    if asked[-1] not in allowed:
        raise PermissionError("no way out of the cluster")

sys.addaudithook(watch)

from pathlib import Path
from ext_proc.app import Service
from ext_proc.config import load
from ext_proc.wire.codec import Encoder
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.passing import Passing
from tests.unit.wire.picking import body_message, headers_message
from tests.waiting import until

async def ask(service, model):
    session = ExtProcSession(service._open_exchange(), Encoder(3), service._observer, Passing())
    session.receive(headers_message())
    content = "List three rivers. " * 200
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    begin = time.perf_counter()
    reply = session.receive(body_message(json.dumps(body).encode()))
    if not hasattr(reply, "message"):
        reply = await reply
    taken = time.perf_counter() - begin
    session.close(delivered=True)
    return taken

async def main():
    path = Path(sys.argv[1])
    async with Service(load(path), path, io.BytesIO()) as service:
        await until(lambda: len(asked) > 5)
        times = [await ask(service, model) for model in ("default", "acme/chat-8b") for _ in range(50)]
        await until(lambda: len(asked) > 8)
    print(json.dumps({"asked": sorted(set(asked)), "slowest": max(times), "median": sorted(times)[50]}))

asyncio.run(main())
"""


@pytest.mark.parametrize("tokens", ["engine", "local"])
async def test_only_configured_addresses_are_connected_to(tmp_path: Path, tokens: str) -> None:
    """Models, metrics, probes and tokens are asked of the engines; requests for an alias wait for nothing (I09)."""
    async with SimEngine(EngineOptions(models=(MODEL, "default"))) as engine:
        told: dict[str, object] = {"source": tokens, "deadline_ms": 50}
        if tokens == "local":
            told["tokenizer"] = str(write(tmp_path / "tokenizer"))
        config = {
            "listen": ["127.0.0.1:0"],
            "admin": {"listen": "127.0.0.1:0"},
            "drain_s": 0,
            "scrape": {"interval_s": 0.1, "idle_interval_s": 0.1},
            "health": {"probes": {"interval_s": 0.1}},
            "pools": {"main": {"endpoints": [engine.address], "kv_events": {"port": 1}, "tokens": told}},
        }
        path = tmp_path / "kvpicker.yaml"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-c", WATCHED, str(path), json.dumps([engine.address])]
        run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["asked"] == [engine.address]
    assert found["median"] < 0.1
    assert found["slowest"] < 1.0
