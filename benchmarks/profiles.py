"""What each profile costs per request, each with a kvpicker and an Envoy of its own, access log and all."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import stack
from benchmarks.bodies import SMALL
from benchmarks.windows import Case, Contestant, Meter, Window
from benchmarks.wire import versions
from ext_proc.bootstrap.options import PROFILES, Profile
from ext_proc.local import envoy

CONNECTIONS = 16
QUIET: dict[str, Any] = {"log": {"level": "warning"}, "scrape": {"enabled": False}}


async def measure(rounds: int, seconds: float, binary: Path) -> dict[str, Any]:
    """Measure windows of all profiles in turn, of whole answers and of streams; medians over the rounds."""
    async with AsyncExitStack() as exits:
        engines_pid, endpoints = await exits.enter_async_context(stack.engines(binary, stream=True))
        contestants: dict[Profile, Contestant] = {}
        for profile in PROFILES:
            folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="kvpicker-bench-")))
            server = await exits.enter_async_context(stack.kvpicker(folder, endpoints, **QUIET))
            gateway = stack.gateway(binary, endpoints, server.address, logs=True, profile=profile)
            contestants[profile] = Contestant(await exits.enter_async_context(gateway), server.pid)
        generator = await exits.enter_async_context(stack.load_generator())
        pids = [pid for one in contestants.values() for pid in (one.server, one.gateway.pid) if pid is not None]
        meter = Meter(generator, (engines_pid, *pids), seconds, 0)
        windows: dict[str, list[Window]] = {}
        for number in range(rounds):
            order = list(contestants.items())[:: -1 if number % 2 else 1]
            for profile, contestant in order:
                for kind, streams in (("whole", False), ("stream", True)):
                    window = await meter.window(contestant, Case(SMALL, CONNECTIONS, streams))
                    windows.setdefault(f"{profile} {kind}", []).append(window)
        return {**{name: _sums(found) for name, found in sorted(windows.items())}, "errors": meter.errors}


def _sums(windows: list[Window]) -> dict[str, float]:
    return {
        "kvpicker_cpu_us": round(median(window.server_us for window in windows)),
        "envoy_cpu_us": round(median(window.envoy_us for window in windows)),
        "p50_ms": round(median(window.p50_ms for window in windows), 2),
        "foreign_cores": round(median(window.foreign for window in windows), 2),
    }


async def run(rounds: int, seconds: float) -> int:
    """Measure and print; returns the exit status."""
    binary = envoy.find_envoy()
    result = await measure(rounds, seconds, binary)
    for name, figures in result.items():
        if isinstance(figures, dict):
            print(name, *(f"{key} {value}" for key, value in figures.items()), sep="  ")
    print(json.dumps({**result, "versions": versions(binary)}))
    return 1 if result["errors"] else 0


def main() -> int:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run: does it work at all?")
    arguments = parser.parse_args()
    return asyncio.run(run(*((1, 0.3) if arguments.quick else (7, 1.5))))


if __name__ == "__main__":
    sys.exit(main())
