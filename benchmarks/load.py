"""A closed-loop HTTP load generator in a process of its own: commands as JSON lines on stdin, results on stdout."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any, cast

from benchmarks.bodies import chat_bodies, http_request

SEND_BUFFER = 2 * 1024 * 1024
"""A whole request fits, so that a send is one system call."""


@functools.cache
def _requests(size: int, *, stream: bool) -> Iterator[bytes]:
    """Walk through the requests of a kind for ever, on through all commands."""
    return itertools.cycle([http_request(body) for body in chat_bodies(size, stream=stream)])


class Run:
    """One measurement: counts and latencies over all connections."""

    def __init__(self, requests: Iterator[bytes], seconds: float) -> None:
        self.requests = requests
        self.began = time.perf_counter()
        self.deadline = self.began + seconds
        self.latencies = array("d")
        self.errors = 0
        self.problem = ""

    def fail(self, problem: str) -> None:
        """Count an error and keep what it says."""
        self.errors += 1
        self.problem = problem[:500]

    def result(self) -> dict[str, Any]:
        """Sum up: counts, seconds, latencies in milliseconds, and what the last error said."""
        seconds = time.perf_counter() - self.began
        ordered = sorted(self.latencies)
        return {
            "requests": len(ordered),
            "errors": self.errors,
            "problem": self.problem,
            "seconds": seconds,
            "p50_ms": _quantile(ordered, 0.5) * 1e3,
            "p99_ms": _quantile(ordered, 0.99) * 1e3,
        }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Connection(asyncio.Protocol):
    """Sends the next request when the response to the last one is whole; understands Content-Length only."""

    def __init__(self, run: Run) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._run = run
        self._received = bytearray()
        self._wanted = 0
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Collect a response."""
        self._received += data
        if not self._wanted:
            self._wanted = _length(self._received)
        if self._wanted and len(self._received) >= self._wanted:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """End; a connection that the peer closes is an error, since no response asks for it."""
        if not self.done.done():
            self._run.fail(f"connection lost: {error}")
            self.done.set_result(None)

    def _send(self) -> None:
        self._wanted = 0
        self._received.clear()
        self._sent = time.perf_counter()
        self._transport.write(next(self._run.requests))

    def _finish(self) -> None:
        now = time.perf_counter()
        self._run.latencies.append(now - self._sent)
        if self._received[9:10] != b"2":
            self._run.fail(self._received.decode("utf-8", "replace"))
        if now < self._run.deadline:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()


def _length(received: bytearray) -> int:
    """Return the length of the whole response; 0 while its head is not there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = bytes(received[:end]).lower()
    _, found, after = head.partition(b"content-length:")
    if not found:
        raise ValueError(f"a response without Content-Length: {head!r}")
    return end + 4 + int(after.partition(b"\r\n")[0])


async def load(port: int, size: int, connections: int, seconds: float, *, stream: bool = False) -> dict[str, Any]:
    """Load a local port for some seconds and sum up."""
    run = Run(_requests(size, stream=stream), seconds)
    loop = asyncio.get_running_loop()
    opened = [loop.create_connection(lambda: Connection(run), "127.0.0.1", port) for _ in range(connections)]
    await asyncio.gather(*[protocol.done for _, protocol in await asyncio.gather(*opened)])
    return run.result()


def main() -> None:
    """Obey until stdin ends."""
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        print(json.dumps(asyncio.run(load(**command))), flush=True)


if __name__ == "__main__":
    main()
