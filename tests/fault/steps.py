"""What makes faults happen, and what makes them right again."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.fault.load import Traffic
from tests.fault.stand import EngineProcess, Stand
from tests.fault.trial import Step
from tests.waiting import until

JUMPS = Path(__file__).parent / "jumps"
"""A folder on kvpicker's Python path whose `sitecustomize` lets the wall clock jump."""

NAMES = Path(__file__).parent / "names"
"""The same with one that answers for host names."""

BLOCKED_S = 0.3
IDLERS = 200
DRAINED = 50
LEAVERS = 10_000
LEAVERS_SHORT = 300
LEAVING_AT_ONCE = 100


def fault(**what: Any) -> Step:
    """Make the culprit fail in requests to come."""

    async def begin(stand: Stand) -> None:
        await stand.culprit.fault(**what)

    return begin


async def heal(stand: Stand) -> None:
    """Make the culprit well."""
    await stand.culprit.heal()


async def kill_engine(stand: Stand) -> None:
    """Kill the culprit."""
    await stand.culprit.kill()


async def start_engine(stand: Stand) -> None:
    """Start it again at its address."""
    await stand.culprit.start()


async def restart_engine(stand: Stand) -> None:
    """End the culprit in order, and start it again with an empty cache."""
    await stand.culprit.stop()
    await stand.culprit.start()


def to_engine(number: signal.Signals) -> Step:
    """Send the culprit a signal."""

    async def step(stand: Stand) -> None:
        stand.culprit.signal(number)

    return step


def to_kvpicker(number: signal.Signals) -> Step:
    """Send the first kvpicker a signal."""

    async def step(stand: Stand) -> None:
        stand.kvpickers[0].signal(number)

    return step


class HalfOpen:
    """A port that accepts connections and never answers, in the place of an engine."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    async def begin(self, stand: Stand) -> None:
        """Put it in the culprit's place."""
        await stand.culprit.kill()
        host, _, port = stand.culprit.address.rpartition(":")
        self._socket = socket.create_server((host, int(port)), backlog=1024)

    async def end(self, stand: Stand) -> None:
        """Put the engine in its place again."""
        assert self._socket is not None
        self._socket.close()
        await stand.culprit.start()


async def add_engine(stand: Stand) -> None:
    """Start one more engine and list it."""
    await stand.add_engine()
    stand.list_engines()


async def remove_engine(stand: Stand) -> None:
    """List the culprit no more; it goes on running."""
    stand.list_engines(stand.engines[1:])


async def list_again(stand: Stand) -> None:
    """List all engines."""
    stand.list_engines()


async def drain_engine(stand: Stand) -> None:
    """Drain the culprit once it runs enough, and wait for that; it must then have nothing left to do."""
    engine, process = stand.culprit, stand.kvpickers[0]
    await until(lambda: runs(stand, DRAINED))
    await process.control("drain", engine.address, "--wait", "--deadline", "30s")
    assert not await runs(stand, 1), "the engine got requests while it was drained"


async def drain_over_a_kill(stand: Stand) -> None:
    """Drain the culprit, kill kvpicker meanwhile, and wait for the drain at its successor."""
    engine, process = stand.culprit, stand.kvpickers[0]
    await until(lambda: runs(stand, DRAINED))
    await process.control("drain", engine.address, "--deadline", "60s")
    await process.kill()
    await process.start()
    assert await runs(stand, 1), "nothing was left to wait for"
    await process.control("drain", engine.address, "--wait", "--deadline", "60s")
    assert not await runs(stand, 1), "the drain was over while requests ran"


async def runs(stand: Stand, least: int) -> bool:
    """Tell whether the culprit runs at least so many requests."""
    async with stand.session.get(f"http://{stand.culprit.address}/sim/state") as answer:
        return int((await answer.json())["in_flight"]) >= least


async def undrain_engine(stand: Stand) -> None:
    """Take the culprit back."""
    await stand.kvpickers[0].control("undrain", stand.culprit.address)


async def break_list(stand: Stand) -> None:
    """Make a file of endpoints that cannot be read."""
    stand.endpoints_file.write_text("endpoints: [")


async def kill_kvpicker(stand: Stand) -> None:
    """Kill the first kvpicker."""
    await stand.kvpickers[0].kill()


async def start_kvpicker(stand: Stand) -> None:
    """Start it again."""
    await stand.kvpickers[0].start()


async def end_kvpicker(stand: Stand) -> None:
    """End the first kvpicker as an orchestrator does, and expect that it calls that a success."""
    failure = await stand.kvpickers[0].stop()
    assert failure is not None
    assert "exit code 0" in str(failure), str(failure)


async def block_kvpicker(stand: Stand) -> None:
    """Stop the first kvpicker's event loop for moments, as a long pause of its interpreter would."""
    for _ in range(4):
        stand.kvpickers[0].signal(signal.SIGSTOP)
        await asyncio.sleep(BLOCKED_S)
        stand.kvpickers[0].signal(signal.SIGCONT)
        await asyncio.sleep(2 * BLOCKED_S)


async def hand_over_envoy(stand: Stand) -> None:
    """Let a new Envoy take over from the running one."""
    await stand.envoy.hot_restart()


class Idlers:
    """Clients of kvpicker's admin server that begin requests and never end them."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    async def begin(self, stand: Stand) -> None:
        """Connect many."""
        host, _, port = stand.kvpickers[0].announced["admin"].rpartition(":")
        for _ in range(IDLERS):
            self._sockets.append(socket.create_connection((host, int(port)), timeout=2))
            self._sockets[-1].sendall(b"GET /metrics HTTP/1.1\r\n")

    async def end(self, stand: Stand) -> None:
        """Let them go."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


async def cut_log(stand: Stand) -> None:
    """Cut Envoy off from where its access log goes."""
    await stand.relay.stop()


async def mend_log(stand: Stand) -> None:
    """Let the access log through again."""
    await stand.relay.start()


def jump(seconds: float) -> Step:
    """Let kvpicker's wall clock jump."""

    async def step(stand: Stand) -> None:
        stand.set_clock(seconds)

    return step


def names(how: str) -> Step:
    """Have host names answered in another way."""

    async def step(stand: Stand) -> None:
        stand.set_names(how)

    return step


def limit(kind: int, value: Callable[[int], int]) -> Step:
    """Limit what the first kvpicker may have, to a value that follows from its process id."""

    async def step(stand: Stand) -> None:
        pid = stand.kvpickers[0].pid
        _, hard = resource.prlimit(pid, kind)
        soft = value(pid)
        resource.prlimit(pid, kind, (hard if soft < 0 else soft, hard))

    return step


def open_files(pid: int) -> int:
    """Count the file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def fill_disk(stand: Stand) -> None:
    """Let the first kvpicker write no more files, and have something to write: one more engine."""
    await limit(resource.RLIMIT_FSIZE, lambda _: 0)(stand)
    await add_engine(stand)


async def empty_disk(stand: Stand) -> None:
    """Let it write again, and wait until Envoy was told of the engine."""
    await limit(resource.RLIMIT_FSIZE, lambda _: -1)(stand)
    port = stand.engines[-1].address.rpartition(":")[2]
    await until(lambda: port in stand.eds_file.read_text())


def everywhere(step: Callable[[EngineProcess], Awaitable[None]]) -> Step:
    """Do something to all engines."""

    async def all_engines(stand: Stand) -> None:
        await asyncio.gather(*map(step, stand.engines))

    return all_engines


async def leave(traffic: Traffic, count: int) -> None:
    """Have many clients begin a stream and go away in the middle."""
    for _ in range(0, count, LEAVING_AT_ONCE):
        await asyncio.gather(*(traffic.stream(100, leave_after=2) for _ in range(min(count, LEAVING_AT_ONCE))))
