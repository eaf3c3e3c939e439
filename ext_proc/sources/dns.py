"""Turns the host names in lists of endpoints into addresses, and keeps them current."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from math import inf
from typing import Protocol

import msgspec

from ext_proc.config.dns import DnsConfig
from ext_proc.core import addresses
from ext_proc.core.pool import EndpointSpec

TIMEOUT_S = 5.0
FIRST_RETRY_S = 1.0
THREADS = 4
"""Look-ups at one time. A look-up that hangs keeps its thread, so that their number has to be bounded."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class NameUnknownError(Exception):
    """The name service answers that there is no such name, or no address of it."""


class Resolver(Protocol):
    """Looks names up."""

    async def resolve(self, host: str) -> Iterable[str]:
        """Return the IP addresses of a host, of both families.

        Raises NameUnknownError if there are none, and OSError if nobody answers.
        """


class SystemResolver:
    """Asks the operating system, each time in a thread that neither holds up requests nor the end of the process."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(THREADS)

    async def resolve(self, host: str) -> Iterable[str]:
        """Return the IP addresses of a host, as `getaddrinfo` knows them."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[set[str]] = loop.create_future()
        if not self._turns.acquire(blocking=False):
            raise BlockingIOError("earlier look-ups have not been answered")

        def ask() -> None:
            try:
                found: set[str] | OSError = _ask(host)
            except OSError as error:
                found = error
            finally:
                self._turns.release()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_give, answer, found)

        threading.Thread(target=ask, name=f"look up {host}", daemon=True).start()
        try:
            return await answer
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                raise NameUnknownError(host) from None
            raise


def _ask(host: str) -> set[str]:
    return {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def _give(answer: asyncio.Future[set[str]], found: set[str] | OSError) -> None:
    if answer.done():
        return
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)


class _Host(msgspec.Struct):
    """What is known of a host name: `unknown_since` says since when it does not exist, `problem` what is wrong."""

    found: tuple[str, ...] = ()
    tried: bool = False
    unknown_since: float | None = None
    problem: str = ""


class HostNames:
    """The addresses of the host names that are listed; the last good ones stay while nobody answers.

    Args:
        resolver: looks names up.
        on_change: told when the addresses of a name have changed.
        on_state: takes a name and what is wrong with it; an empty text once nothing is.
        rng: spreads the look-ups.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        resolver: Resolver,
        on_change: Callable[[], None],
        on_state: Callable[[str, str], None],
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolver = resolver
        self._on_change = on_change
        self._on_state = on_state
        self._rng = rng or random.Random()  # noqa: S311  jitter is no secret
        self._clock = clock
        self._config = DnsConfig()
        self._hosts: dict[str, _Host] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(THREADS)

    @property
    def is_degraded(self) -> bool:
        """Whether some name cannot be looked up or does not exist."""
        return any(host.problem for host in self._hosts.values())

    def configure(self, config: DnsConfig) -> None:
        """Go by other settings; they count from the next look-up of each name, which then comes at once."""
        if config == self._config:
            return
        self._config = config
        names = list(self._hosts)
        for name in names:
            self._tasks.pop(name).cancel()
            self._start(name)

    def follow(self, specs: Iterable[EndpointSpec]) -> None:
        """Look up the names among these endpoints, and no others; needs a running event loop if there are any."""
        wanted = {host for host in map(_host_of, specs) if host is not None}
        for name in self._hosts.keys() - wanted:
            self._tasks.pop(name).cancel()
            if self._hosts.pop(name).problem:
                self._on_state(name, "")
        for name in sorted(wanted - self._hosts.keys()):
            self._hosts[name] = _Host()
            self._start(name)

    def expanded(self, specs: Iterable[EndpointSpec]) -> list[EndpointSpec]:
        """Put the known addresses of names in their place; an address that is listed by itself goes before."""
        listed = list(specs)
        literal = {spec.address for spec in listed if _host_of(spec) is None}
        made: dict[str, EndpointSpec] = {}
        for spec in listed:
            host = _host_of(spec)
            if host is None:
                made[spec.address] = spec  # of two the last counts
                continue
            known = self._hosts.get(host)
            for found in known.found if known is not None else ():
                address = addresses.join(found, int(spec.address.rpartition(":")[2]))
                if address not in literal:
                    made.setdefault(address, msgspec.structs.replace(spec, address=address, name=spec.address))
        return list(made.values())

    def unanswered(self, specs: Iterable[EndpointSpec]) -> bool:
        """Tell whether a name among these endpoints has not been answered yet, neither well nor ill."""
        hosts = (self._hosts.get(host) for host in map(_host_of, specs) if host is not None)
        return any(host is None or (not host.found and host.unknown_since is None) for host in hosts)

    async def first(self, seconds: float) -> None:
        """Wait until each name was looked up once, but no longer than this."""
        until = self._clock() + seconds
        while not all(host.tried for host in self._hosts.values()) and self._clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Look nothing up any more."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._hosts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._follow(name, self._hosts[name]), name=f"look up {name}")

    async def _follow(self, name: str, host: _Host) -> None:
        failures = 0
        while True:
            problem = await self._look(name, host)
            failures = failures + 1 if problem else 0
            host.tried = True
            if problem != host.problem:
                host.problem = problem
                self._on_state(name, problem)
            await asyncio.sleep(self._wait(failures))

    async def _look(self, name: str, host: _Host) -> str:
        """Look a name up and return what is wrong with it; empty if nothing is."""
        try:
            async with self._turns, asyncio.timeout(TIMEOUT_S):
                found = await self._resolver.resolve(name)
            return self._take(host, self._chosen(found, host.found))
        except NameUnknownError:
            return self._take(host, ())
        except TimeoutError:
            return "timeout"
        except Exception as error:  # noqa: BLE001  one name's surprise must not leave it unknown for ever
            return "unanswered" if isinstance(error, OSError) else "failed"

    def _take(self, host: _Host, found: tuple[str, ...]) -> str:
        if found:
            host.unknown_since = None
            self._put(host, found)
            return ""
        now = self._clock()
        host.unknown_since = now if host.unknown_since is None else host.unknown_since
        if now - host.unknown_since >= self._config.forget_s:
            self._put(host, ())
        return "unknown"

    def _put(self, host: _Host, found: tuple[str, ...]) -> None:
        if found != host.found:
            host.found = found
            self._on_change()

    def _chosen(self, found: Iterable[str], before: Collection[str]) -> tuple[str, ...]:
        """Return those of the addresses that the settings ask for, in order."""
        known = sorted(map(ipaddress.ip_address, filter(_is_usable, found)), key=lambda ip: (ip.version, int(ip)))
        family = self._config.family
        versions = {"ipv4": {4}, "ipv6": {6}}.get(family, {4, 6})
        if family == "auto" and known:
            versions = {known[0].version}
        texts = [str(ip) for ip in known if ip.version in versions]
        if self._config.answers == "one" and texts:
            texts = [next((text for text in texts if text in before), texts[0])]
        return tuple(texts)

    def _wait(self, failures: int) -> float:
        interval = self._config.interval_s
        longest = FIRST_RETRY_S * 2.0 ** min(failures - 1, 16) if failures else inf
        return min(interval, longest) * self._rng.uniform(0.8, 1.2)


def _host_of(spec: EndpointSpec) -> str | None:
    """Return the host name in an endpoint's address; None if that is an IP address."""
    host = spec.address.rpartition(":")[0]
    return host if addresses.is_host_name(host) else None


def _is_usable(text: str) -> bool:
    """Whether an address means one host everywhere: not with a zone, and not 0.0.0.0, by which names are blocked."""
    return "%" not in text and addresses.is_one_host(text)
