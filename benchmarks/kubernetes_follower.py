"""Follows a cluster as kvpicker does and prints each change with its time, for `benchmarks.kubernetes`."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from ext_proc.assembly import build_core
from ext_proc.config import load
from ext_proc.core.observer import NoObserver
from ext_proc.core.pool import Change
from ext_proc.ops.events import Event
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.keeper import EndpointKeeper
from ext_proc.watching import Watching


def _print(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _changed(change: Change) -> None:
    added, removed = ([endpoint.address for endpoint in some] for some in (change.added, change.removed))
    _print(at=time.monotonic(), added=added, removed=removed)


async def follow(path: Path, directory: Path) -> None:
    """Follow the pools of a configuration until the standard input ends; then print the CPU seconds that it took."""
    config = load(path)
    core = build_core(config, NoObserver())
    keeper = EndpointKeeper(
        registry=core.registry,
        follow=core.follow,
        eds=EdsWriter(directory / "endpoints.json", "engines"),
        on_change=_changed,
        on_source=lambda _source, _error: None,
    )

    def say(event: Event, **fields: object) -> None:
        _print(event=event.name_, **fields)

    watching = Watching(keeper, core.registry, core.lifecycle, say)
    keeper.configure(config)
    async with watching.following(config):
        await watching.answered()
        _print(ready=time.monotonic())
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.to_thread(sys.stdin.read)
        _print(cpu=time.process_time() - cpu, seconds=time.monotonic() - began)
    await keeper.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(follow(Path(sys.argv[1]), Path(scratch)))
