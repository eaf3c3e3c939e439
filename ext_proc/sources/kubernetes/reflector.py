"""Keeps a reflection in step with an API server: lists, watches, and begins again after whatever went wrong."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Generic

import aiohttp

from ext_proc.sources.kubernetes.access import Access, CredentialsError, Session
from ext_proc.sources.kubernetes.objects import Kind, T, UnusableAnswerError
from ext_proc.sources.kubernetes.reflection import ExpiredError, Lines, Reflection, RefusedError

PAGE = 500
"""Objects per page of a list, as kubectl asks for them."""

MAX_BODY = 256 * 1024 * 1024
"""Bytes of one page at most."""

WATCH_S = (240.0, 360.0)
"""Seconds after which the server is to end a watch; at random, so that many watches do not end at once."""

CONNECT_S = 10.0
"""Seconds that making a connection may take."""

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
MAX_RETRY_AFTER_S = 60.0
SETTLED_S = 1.0
"""How long a watch must have lasted to count as a good one if it brings nothing."""

_TRIES = 3
"""Failures in a row from which on it is said aloud; a watch that is cut is every day's business."""

_AT_ONCE = frozenset({"credentials", "unauthorized", "forbidden", "not_found", "tls"})
"""Failures that do not go away by themselves."""

_BY_CODE = {401: "unauthorized", 403: "forbidden", 404: "not_found", 429: "busy"}
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ExpiredError, "expired"),
    (CredentialsError, "credentials"),
    (UnusableAnswerError, "unusable_answer"),
    (aiohttp.ClientSSLError, "tls"),
    (TimeoutError, "timeout"),
    (aiohttp.ClientError, "unreachable"),
    (OSError, "unreachable"),
)
_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_OK = 200
_EXPIRED = 410


class _AnswerError(Exception):
    """An answer other than 200."""

    def __init__(self, code: int, retry_after: str | None) -> None:
        super().__init__(f"status {code}")
        self.code = code
        self.retry_after = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0


class Reflector(Generic[T]):
    """One collection of an API server.

    Args:
        access: opens sessions.
        kind: reads the answers.
        path: the collection, as in `/api/v1/namespaces/default/pods`.
        query: which of its objects count.
        inactivity: seconds of silence after which a connection counts as dead.
        on_change: told after the objects have changed.
        on_state: told when `problem` has changed.
        rng: spreads the waits.
        absent_s: seconds between two looks for a resource that the server does not have, where that is no failure; 0
            takes it for one.

    Attributes:
        problem: why the objects may be out of date; empty while nothing speaks for that.
        detail: the same in the words of who said it, for the log.
    """

    def __init__(
        self,
        access: Access,
        kind: Kind[T],
        path: str,
        query: Mapping[str, str],
        *,
        inactivity: float,
        on_change: Callable[[], None],
        on_state: Callable[[], None],
        rng: random.Random,
        absent_s: float = 0.0,
    ) -> None:
        self.problem = ""
        self.detail = ""
        self._access = access
        self._kind = kind
        self._path = path
        self._query = dict(query)
        self._inactivity = inactivity
        self._on_change = on_change
        self._on_state = on_state
        self._rng = rng
        self._absent_s = absent_s
        self._reflection: Reflection[T] = Reflection()
        self._failures = 0
        self._is_watching = False

    @property
    def objects(self) -> Mapping[str, T]:
        """The objects by uid, the last good ones while nobody answers; those that changed last come last."""
        return self._reflection.objects

    @property
    def listed(self) -> bool:
        """Whether the objects were ever known completely."""
        return self._reflection.listed

    async def run(self) -> None:
        """Follow the collection until cancelled; no failure ends this."""
        while True:
            retry_after = 0.0
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001  whatever goes wrong, the next round may go well
                if self._absent_s and _reason(error) == "not_found":
                    self._gone()
                    await asyncio.sleep(self._absent_s)
                    continue
                if isinstance(error, ExpiredError):
                    self._reflection.expired()
                elif self._is_watching:
                    self._reflection.watch_failed()
                if isinstance(error, _AnswerError):
                    retry_after = error.retry_after
                self._failed(_reason(error), error)
            self._is_watching = False
            await asyncio.sleep(max(self._wait(), min(retry_after, MAX_RETRY_AFTER_S)))

    async def _round(self) -> None:
        """List if that is needed, then watch until the watch ends."""
        async with self._access.open() as session:
            if not self._reflection.version:
                await self._list(session)
            self._is_watching = True
            await self._watch(session)

    async def _list(self, session: Session) -> None:
        reflection = self._reflection
        reflection.begin_list()
        query = dict(self._query)
        if reflection.is_paged:
            query["limit"] = str(PAGE)
        while True:
            goes_on = reflection.page(self._kind.page(await self._body(session, query)))
            if not goes_on:
                break
            query["continue"] = goes_on
        self._on_change()

    async def _body(self, session: Session, query: Mapping[str, str]) -> bytes:
        async with await self._get(session, query) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    raise UnusableAnswerError(f"a list of more than {MAX_BODY} bytes")
            return bytes(body)

    async def _watch(self, session: Session) -> None:
        seconds = self._rng.uniform(*WATCH_S)
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._reflection.version,
            "timeoutSeconds": str(int(seconds)),
        }
        began, lines = time.monotonic(), Lines()
        async with await self._get(session, query) as answer:
            _keep_alive(answer)
            settled = asyncio.get_running_loop().call_later(SETTLED_S, self._recovered)
            try:
                async with asyncio.timeout(seconds + self._inactivity):
                    async for chunk in answer.content.iter_any():
                        self._take(lines.feed(chunk))
            except TimeoutError:
                self._reflection.watch_failed()  # silence is no failure, but after some of it a list must tell
            finally:
                settled.cancel()
        if time.monotonic() - began < SETTLED_S:
            self._failures += 1  # a server that ends each watch at once must not be asked without end

    def _take(self, lines: list[bytes]) -> None:
        before = self._reflection.version
        changed = False
        try:
            for line in lines:
                changed = self._reflection.take(self._kind.event(line)) or changed
        finally:
            if self._reflection.version != before:
                self._recovered()
            if changed:
                self._on_change()

    async def _get(self, session: Session, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        silence = self._inactivity
        connect = min(silence, CONNECT_S)
        timeout = aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=silence)
        answer = await session.get(self._path, query, timeout)
        if answer.status == _OK:
            return answer
        answer.close()
        if answer.status == _EXPIRED:
            raise ExpiredError
        raise _AnswerError(answer.status, answer.headers.get("Retry-After"))

    def _gone(self) -> None:
        """The server does not have the resource, or not any more."""
        self._is_watching = False
        had = bool(self.objects)
        self._reflection = Reflection()
        self._recovered()
        if had:
            self._on_change()

    def _failed(self, reason: str, error: Exception) -> None:
        self._failures += 1
        if self._failures >= _TRIES or reason in _AT_ONCE or not self.listed:
            self._say(reason, str(error))

    def _recovered(self) -> None:
        self._failures = 0
        self._say("", "")

    def _say(self, problem: str, detail: str) -> None:
        self.detail = detail
        if problem != self.problem:
            self.problem = problem
            self._on_state()

    def _wait(self) -> float:
        """Return the seconds until the next round, at random so that many kvpickers do not come at once."""
        longest = min(FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 16), LONGEST_WAIT_S)
        return longest * self._rng.uniform(0.5, 1.0)


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    """Let the operating system notice within half a minute that nobody is at the other end any more."""
    transport = None if answer.connection is None else answer.connection.transport
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _reason(error: Exception) -> str:
    if isinstance(error, _AnswerError | RefusedError):
        return _BY_CODE.get(error.code, f"http_{error.code}")
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "failed")
