"""What reading the metrics of a large fleet costs: CPU of kvpicker's own process, with 50 KB pages of a real vLLM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.proc import machine_cpu
from ext_proc.config import parse
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Change, EndpointSpec, Registry
from ext_proc.core.signals import EngineSignals, Interval, Signals
from ext_proc.sources.scrape import Scraper
from ext_proc.sources.scrape_dialects import DIALECTS
from ext_proc.sources.scrape_engines import PageReader
from ext_proc.sources.scrape_text import Scanner
from ext_proc.warming import warm_up

PAGE = Path(__file__).parents[1] / "tests" / "cases" / "vllm_metrics.txt"

SETTLE_S = 3.0
"""Seconds that are not measured: connections are made and code is warmed."""

WINDOW_S = 2.0

_COUNTER = b'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} '


class Server(asyncio.Protocol):
    """Answers every request on a connection with a page whose counters grow."""

    def __init__(self, *, packed: bool) -> None:
        self._before, _, rest = PAGE.read_bytes().partition(_COUNTER + b"0.0")
        self._after = rest
        self._packed = packed
        self._asked = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  TCP has no other
        self._transport = transport

    def data_received(self, _: bytes) -> None:
        """Answer."""
        self._asked += 1
        page = b"".join((self._before, _COUNTER, str(float(self._asked)).encode(), self._after))
        coding = b"Content-Encoding: gzip\r\n" if self._packed else b""
        page = gzip.compress(page, 6) if self._packed else page
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n%bContent-Length: %d\r\n\r\n" % (coding, len(page))
        self._transport.write(head + page)


async def serve(count: int, *, packed: bool) -> None:
    """Listen on free ports, print them, and answer until standard input closes."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Server(packed=packed), "127.0.0.1", 0) for _ in range(count)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def fleet(count: int, *, packed: bool) -> Iterator[list[str]]:
    """Run the servers in a process of their own; yields their addresses."""
    options = ["--serve", str(count), *(["--gzip"] if packed else [])]
    command = [sys.executable, "-m", "benchmarks.scrape", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  as asked for
        try:
            yield [f"127.0.0.1:{port}" for port in json.loads(process.stdout.readline())]
        finally:
            process.kill()


class Count:
    """Counts readings."""

    def __init__(self) -> None:
        self.read = 0
        self.failed = 0

    def scraped(self, result: str, engine: str, missing: tuple[str, ...]) -> None:  # noqa: ARG002  a listener's
        """Count it."""
        self.read += result == "ok"
        self.failed += result != "ok"

    def state_changed(self, endpoint: Endpoint, problem: str, error: Exception | None) -> None:
        """Ignore it; failures are counted."""

    def sleep_told(self, endpoint: Endpoint, signals: EngineSignals) -> None:
        """Ignore it."""

    def size_learnt(self, change: Change) -> None:
        """Ignore it."""

    def interval_ended(self, endpoint: Endpoint, interval: Interval, signals: EngineSignals) -> None:
        """Ignore it."""


async def measure(addresses: list[str], windows: int) -> dict[str, float]:
    """Read all endpoints once a second, as if all were busy; returns CPU per reading and the share of a core."""
    warm_up()  # the garbage collector is set as in the service
    registry, signals, count = Registry(), Signals(), Count()
    registry.replace("p", [EndpointSpec(address=address) for address in addresses])
    config = parse("pools: {p: {endpoints: ['127.0.0.1:1']}}")
    scraper = Scraper(config, None, registry=registry, signals=signals, is_busy=lambda _: True, listener=count)
    task = asyncio.create_task(scraper.run())
    await asyncio.sleep(SETTLE_S)
    costs, rates = [], []
    machine, began = machine_cpu(), time.monotonic()
    for _ in range(windows):
        read, cpu, start = count.read, time.process_time(), time.monotonic()
        await asyncio.sleep(WINDOW_S)
        costs.append((time.process_time() - cpu) / max(count.read - read, 1))
        rates.append((count.read - read) / (time.monotonic() - start))
    busy = (machine_cpu() - machine) / (time.monotonic() - began)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rate = statistics.median(rates)
    return {
        "cpu_us_per_scrape": statistics.median(costs) * 1e6,
        "cpu_us_per_scrape_lowest": min(costs) * 1e6,
        "core_percent": statistics.median(costs) * rate * 100,
        "core_percent_lowest": min(costs) * rate * 100,
        "scrapes_per_s": rate,
        "failed": count.failed,
        "busy_cores": busy,
    }


def best_us(work: Callable[[], object], times: int) -> float:
    """Return the CPU of the fastest of many calls in a row, microseconds."""
    work()
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, (time.process_time() - began) / times)
    return best * 1e6


def reading() -> dict[str, float]:
    """Measure reading one page: by the layout of the one before, in full, and by prometheus_client."""
    page = PAGE.read_bytes()
    reader, scanner, text = PageReader(), Scanner(DIALECTS[0].names()), page.decode()
    return {
        "page_bytes": len(page),
        "page_lines": len(re.findall(rb"\n", page)),
        "read_us": best_us(lambda: reader.read(page, 0.0), 300),
        "search_us": best_us(lambda: scanner.scan(page), 300),
        "prometheus_client_us": best_us(lambda: list(text_string_to_metric_families(text)), 5),
    }


def main() -> None:
    """Run the command; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=200)
    parser.add_argument("--windows", type=int, default=12, help=f"of {WINDOW_S:g} s each")
    parser.add_argument("--gzip", action="store_true", help="let the engines compress their pages")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve, packed=arguments.gzip))
        return
    with fleet(arguments.endpoints, packed=arguments.gzip) as addresses:
        result = asyncio.run(measure(addresses, arguments.windows))
    result |= reading()
    print(json.dumps({name: round(value, 1) for name, value in result.items()}))


if __name__ == "__main__":
    main()
